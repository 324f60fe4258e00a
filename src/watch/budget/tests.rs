//! Budgets over time, and the watches that share one.

use super::*;

fn clock() -> impl Fn(u64) -> Instant {
    let start = Instant::now();
    move |ms| start + Duration::from_millis(ms)
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// cacher `TestTimeBudget`, with our capacity and rate.
#[test]
fn a_budget_is_spent_by_waiting_and_refilled_at_a_tenth_of_wall_time() {
    let at = clock();
    let mut budget = TimeBudget::new(ms(500), at(0));
    assert_eq!(budget.available(at(10_000)), ms(500), "never above its capacity");
    budget.charge(at(10_000), at(10_400));
    assert_eq!(budget.available(at(10_400)), ms(100));
    assert_eq!(budget.available(at(11_400)), ms(200));
    budget.charge(at(11_400), at(12_400));
    assert_eq!(budget.available(at(12_400)), Duration::ZERO, "never below zero");
    assert_eq!(budget.available(at(20_400)), Duration::ZERO, "what a late timer took is earned first");
    assert_eq!(budget.available(at(21_400)), ms(100));
}

#[test]
fn time_that_several_draw_concurrently_counts_once() {
    let at = clock();
    let budget = SharedBudget::new(ms(500), at(0));
    assert_eq!((budget.left(at(0)), budget.spent_at()), (ms(500), None));
    budget.begin(at(0));
    budget.begin(at(100));
    assert_eq!((budget.left(at(200)), budget.spent_at()), (ms(300), Some(at(500))));
    // Two threads may arrive in another order than the one in which they read the clock.
    assert_eq!(budget.end(at(300)), None);
    assert_eq!(budget.end(at(250)), Some(ms(300)));
    assert_eq!((budget.left(at(300)), budget.spent_at()), (ms(200), None));
    budget.begin(at(1300));
    assert_eq!(budget.spent_at(), Some(at(1600)), "a tenth of a second was earned");
}

#[test]
fn watches_of_a_client_share_its_budget_and_other_watches_have_one_each() {
    let at = clock();
    let mut budgets = ClientBudgets::new(ms(500));
    let host = |text: &str| Client::at(text.parse().unwrap());
    let mut same = |one: &Client, other: &Client| Arc::ptr_eq(&budgets.of(one, at(0)), &budgets.of(other, at(0)));
    assert!(same(&Client::User(7), &Client::User(7)) && !same(&Client::User(7), &Client::User(8)));
    assert!(!same(&Client::Watch, &Client::Watch));
    assert!(same(&host("10.1.2.3"), &host("::ffff:10.1.2.3")), "one host by either family");
    assert!(!same(&host("10.1.2.3"), &host("10.1.2.4")));
    assert!(same(&host("2001:db8:0:1::1"), &host("2001:db8:0:1:ffff::2")), "a host may choose these bits");
    assert!(!same(&host("2001:db8:0:1::1"), &host("2001:db8:0:2::1")));
}

#[test]
fn clients_are_remembered_while_they_watch_or_owe_time_up_to_a_bound() {
    let at = clock();
    let mut budgets = ClientBudgets::new(ms(500));
    let watching = budgets.of(&Client::User(0), at(0));
    let spends = |budgets: &mut ClientBudgets, user, time| {
        let budget = budgets.of(&Client::User(user), at(0));
        budget.begin(at(0));
        budget.end(at(time));
    };
    spends(&mut budgets, 1, 100);
    budgets.of(&Client::User(2), at(0));
    budgets.sweep(at(100));
    assert_eq!(budgets.len(), 2, "the one that has spent nothing and has no watch is forgotten");
    assert_eq!(budgets.of(&Client::User(1), at(100)).left(at(100)), ms(400));
    budgets.sweep(at(1100));
    assert_eq!(budgets.len(), 1, "and the other one when its budget is full again");
    drop(watching);
    budgets.sweep(at(1100));
    assert_eq!(budgets.len(), 0);

    for user in 0..10 * MAX_ABSENT as u32 {
        budgets.of(&Client::User(user), at(0));
        assert!(budgets.len() <= 2 * MAX_ABSENT, "{user} clients that came and went");
        assert!(
            user as usize >= MAX_ABSENT || budgets.len() > user as usize,
            "nobody is looked for before there are many"
        );
        assert!(budgets.sweep_at >= MAX_ABSENT, "they are not looked through for each new one");
    }
    for user in 0..10 * MAX_ABSENT as u32 {
        spends(&mut budgets, user, u64::from(user % 300 + 1));
        assert!(budgets.len() <= 2 * MAX_ABSENT + 1, "{user} clients that have spent something");
    }
    budgets.sweep(at(300));
    assert_eq!(budgets.len(), MAX_ABSENT);
    // No remaining client has spent less than a removed one.
    assert!(budgets.budgets.values().all(|budget| budget.left(at(300)) < ms(300)));
}
