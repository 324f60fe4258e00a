//! Choice of the endpoint, contact with etcd, and progress.

use tempfile::TempDir;
use tonic::{
    Code, Status,
    transport::{Identity as ServerIdentity, Server, ServerTlsConfig},
};

use super::*;
use crate::{
    cache::SyncState,
    source::etcd::{pb::RangeResponse, tests::fake_etcd::Fault},
};

fn file(directory: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = directory.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[tokio::test]
async fn progress_is_requested_often_while_a_caller_waits() {
    let fake = FakeEtcd::new();
    fake.write("a=1");
    let gate = fake.member().await;
    let config = EtcdConfig { heartbeat: Duration::from_secs(3600), ..config(&[&gate]) };
    let mut rig = Rig::start(config);
    rig.told().await;
    fake.apply(vec![(b"/elsewhere".to_vec(), Some(b"x".to_vec()))]);
    assert!(timeout(Duration::from_millis(50), rig.next()).await.is_err(), "nobody asks");
    assert_eq!(fake.counts().progress, 0);
    let waiting = rig.demand.wait();
    assert_eq!(rig.next().await, "bookmark 3");
    fake.apply(vec![(b"/elsewhere".to_vec(), None)]);
    while rig.next().await != "bookmark 4" {}
    drop(waiting);
    let asked = timeout(DEADLINE, async {
        // One request may be under way.
        let mut asked = fake.counts().progress;
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            match fake.counts().progress {
                same if same == asked => return asked,
                more => asked = more,
            }
        }
    });
    assert!(asked.await.expect("it stops asking") >= 2);
    assert_eq!((rig.lists(), fake.counts().watches), (1, 1));
}

/// A member that lags confirms nothing by itself: the cluster's revision does, and the state waits for it.
#[tokio::test]
async fn the_revision_of_the_cluster_is_confirmed_for_a_caller_that_waits() {
    for version in ["3.6.16", "3.4.23"] {
        let fake = FakeEtcd::new();
        fake.set(|store| store.version = version);
        fake.write("a=1");
        let gate = fake.member().await;
        let progress_interval = Duration::from_millis(30);
        let config = EtcdConfig { heartbeat: Duration::from_secs(3600), progress_interval, ..config(&[&gate]) };
        let mut rig = Rig::start(config);
        rig.told().await;
        let (ranges, begun) = (fake.counts().ranges, tokio::time::Instant::now());
        let demand = rig.demand.clone();
        for number in 3..8 {
            fake.write(&format!("a={number}"));
            let confirmed = demand.confirmed_since(tokio::time::Instant::now());
            let waiting = demand.wait();
            let confirmed = timeout(DEADLINE, confirmed).await;
            assert_eq!(confirmed.expect("in time"), ResourceVersion::decimal(number), "{version}");
            drop(waiting);
        }
        let reads = u32::try_from(fake.counts().ranges - ranges).unwrap();
        // The first one may come just before one that is due.
        assert!(reads >= 5 && begun.elapsed() >= progress_interval * (reads - 2), "{version}: {reads} reads");
        rig.reach(&fake).await;
        assert_eq!((rig.lists(), fake.counts().watches), (1, 1), "{version}");
    }
}

/// The answer to a read shows nothing of the time after its begin.
#[tokio::test]
async fn a_revision_is_not_confirmed_for_a_caller_that_came_after_its_read() {
    let fake = FakeEtcd::new();
    fake.write("a=1");
    let gate = fake.member().await;
    let mut rig = Rig::start(EtcdConfig { answer_timeout: DEADLINE, ..config(&[&gate]) });
    rig.told().await;
    let ranges = fake.counts().ranges;
    let (release, held) = tokio::sync::oneshot::channel();
    fake.set(|store| store.ranges.push_back(Fault::Hold(held)));
    let answer = RangeResponse { header: Some(fake.all().0), ..RangeResponse::default() };
    fake.set(|store| store.answers.push_back(answer));
    let demand = rig.demand.clone();
    let first = demand.confirmed_since(tokio::time::Instant::now());
    let _waiting = demand.wait();
    timeout(DEADLINE, async {
        while fake.counts().ranges == ranges {
            rig.next().await;
        }
    })
    .await
    .expect("it is read");
    let progress = fake.counts().progress;
    let asked = async {
        while fake.counts().progress < progress + 20 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, asked).await.expect("progress is requested");
    assert_eq!(fake.counts().ranges, ranges + 1, "no other read begins before it is answered");
    fake.write("a=2");
    let second = demand.confirmed_since(tokio::time::Instant::now());
    drop(release);
    let confirmed = timeout(DEADLINE, async { tokio::join!(first, second) }).await.expect("in time");
    assert_eq!(confirmed.1, ResourceVersion::decimal(3), "{confirmed:?}");
}

/// Until etcd has repeated the last change, its revision may be that of another history.
#[tokio::test]
async fn nothing_is_confirmed_before_the_history_is() {
    for is_restored in [false, true] {
        let fake = FakeEtcd::new();
        fake.write("a=1");
        let gate = fake.member().await;
        let mut rig = Rig::start(EtcdConfig { answer_timeout: DEADLINE, ..config(&[&gate]) });
        rig.told().await;
        fake.write("a=2");
        rig.told().await;
        gate.refuse(true);
        rig.error("connection").await;
        if is_restored {
            fake.restore(2);
            fake.write("a=other");
        }
        fake.set(|store| store.sync_delay = 2 * DEADLINE);
        let demand = rig.demand.clone();
        let mut confirmed = std::pin::pin!(demand.confirmed_since(tokio::time::Instant::now()));
        let _waiting = demand.wait();
        gate.refuse(false);
        let read = async {
            while fake.counts().watches < 2 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let ranges = fake.counts().ranges;
            while fake.counts().ranges < ranges + 3 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(DEADLINE, read).await.expect("its revision is read");
        assert!(futures_util::poll!(confirmed.as_mut()).is_pending(), "restored: {is_restored}");
        fake.set(|store| store.sync_delay = Duration::ZERO);
        gate.cut();
        assert_eq!(timeout(DEADLINE, confirmed).await.expect("in time"), ResourceVersion::decimal(3));
        if is_restored {
            assert_eq!(rig.told().await, "rewind 3");
        }
        assert_eq!((rig.state.clone(), rig.history_rewrites), (fake.state(PREFIX), usize::from(is_restored)));
    }
}

/// Progress may run ahead of events before 3.4.31 and 3.5.13: the source does not request it (etcd #15220).
#[tokio::test]
async fn the_head_of_an_old_server_is_read_instead() {
    let fake = FakeEtcd::new();
    fake.set(|store| store.version = "3.4.23");
    fake.write("a=1");
    let gate = fake.member().await;
    let mut rig = Rig::of(&gate);
    rig.told().await;
    let _waiting = rig.demand.wait();
    let ranges = fake.counts().ranges;
    let asked = async {
        while fake.counts().ranges < ranges + 3 {
            assert!(timeout(Duration::from_millis(10), rig.next()).await.is_err(), "nothing is concluded from it");
        }
    };
    timeout(DEADLINE, asked).await.expect("it is asked");
    assert_eq!(fake.counts().progress, 0);
    assert_eq!(rig.health.state(), SyncState::Synced);
    fake.write("a=2");
    assert_eq!(rig.told().await, "3 ~a=2");
    assert_eq!(fake.counts().watches, 1);
}

#[tokio::test]
async fn a_silent_server_is_abandoned() {
    for version in ["3.6.0", "3.4.23"] {
        let fake = FakeEtcd::new();
        fake.write("a=1");
        fake.set(|store| store.version = version);
        let (first, second) = (fake.member().await, fake.member().await);
        let mut rig = Rig::start(config(&[&first, &second]));
        rig.told().await;
        first.freeze(true);
        fake.write("a=2");
        assert_eq!(rig.told().await, "3 ~a=2", "over the other member");
        assert_eq!((second.accepted(), rig.lists()), (1, 1));
    }
}

#[tokio::test]
async fn a_member_that_hangs_in_a_call_is_abandoned() {
    let fake = FakeEtcd::new();
    fake.write("a=1");
    fake.set(|store| store.ranges.push_back(Fault::Hang));
    let (first, second) = (fake.member().await, fake.member().await);
    let mut rig = Rig::start(config(&[&first, &second]));
    assert_eq!(rig.told().await, "list 2");
    assert_eq!((first.accepted(), second.accepted()), (1, 1));
    fake.set(|store| store.watches.push_back(Fault::Hang));
    second.cut();
    fake.write("a=2");
    assert_eq!(rig.told().await, "3 ~a=2");
}

#[tokio::test]
async fn endpoints_change_only_forward_and_only_after_a_failure() {
    let fake = FakeEtcd::new();
    fake.write("a=0");
    let gates = [fake.member().await, fake.member().await, fake.member().await];
    let mut rig = Rig::start(config(&[&gates[0], &gates[1], &gates[2]]));
    rig.told().await;
    let accepted = || [gates[0].accepted(), gates[1].accepted(), gates[2].accepted()];
    assert_eq!(accepted(), [1, 0, 0]);
    for (cut, expected) in [(0, [1, 1, 0]), (1, [1, 1, 1]), (2, [2, 1, 1])] {
        gates[cut].cut();
        fake.write(&format!("a={cut}x"));
        rig.told().await;
        assert_eq!(accepted(), expected, "cut {cut}");
    }
    gates[1].refuse(true);
    gates[0].cut();
    fake.write("a=9");
    rig.told().await;
    assert_eq!(accepted(), [2, 1, 2], "the one that refuses is passed over");
    assert_eq!(rig.lists(), 1);
}

#[tokio::test]
async fn an_unreachable_cluster_is_reported_with_every_endpoint() {
    let fake = FakeEtcd::new();
    let (first, second) = (fake.member().await, fake.member().await);
    let gone = config(&[&first, &second]);
    drop((first, second));
    tokio::task::yield_now().await;
    let urls = gone.endpoints.clone();
    let rig = Rig::start(gone);
    let error = rig.error("Connection refused").await;
    assert!(urls.iter().all(|url| error.contains(url.uri())) && !error.contains('\n'), "{error}");
}

#[tokio::test]
async fn a_user_authenticates_and_renews_a_rejected_token() {
    let fake = FakeEtcd::new();
    fake.write("a=1");
    fake.set(|store| (store.user, store.token) = (Some(("reader", "secret")), "one".to_owned()));
    let gate = fake.member().await;
    let rig = Rig::of(&gate);
    rig.error("user name is empty; configure a user and a password file").await;
    drop(rig);

    let directory = tempfile::tempdir().unwrap();
    let password = file(&directory, "password", "wrong\n");
    let config = EtcdConfig { credentials: Some(("reader".to_owned(), password)), ..config(&[&gate]) };
    let mut rig = Rig::start(config);
    rig.error("authentication failed, invalid user ID or password; correct the user").await;
    file(&directory, "password", "secret\n");
    assert_eq!(rig.told().await, "list 2", "the file is read again");
    fake.set(|store| store.token = "two".to_owned());
    let before = fake.counts().authentications;
    gate.cut();
    fake.write("a=2");
    assert_eq!(rig.told().await, "3 ~a=2");
    assert_eq!(fake.counts().authentications, before + 1);
    fake.set(|store| store.user = None);
    gate.cut();
    fake.write("a=3");
    assert_eq!(rig.told().await, "4 ~a=3", "who asks nobody takes everybody");
}

#[tokio::test]
async fn a_token_that_expires_is_renewed() {
    let fake = FakeEtcd::new();
    fake.write("a=1");
    fake.set(|store| (store.user, store.token) = (Some(("reader", "secret")), "one".to_owned()));
    let gate = fake.member().await;
    let directory = tempfile::tempdir().unwrap();
    let password = file(&directory, "password", "secret");
    let credentials = Some(("reader".to_owned(), password));
    let mut rig = Rig::start(EtcdConfig { credentials, ..config(&[&gate]) });
    rig.told().await;
    // A list over the same connection, with a token that has expired.
    fake.set(|store| {
        store.token = "two".to_owned();
        let gone = store.response(|response| (response.canceled, response.compact_revision) = (true, 1));
        store.watches.push_back(Fault::Tell(vec![gone]));
    });
    gate.cut();
    assert_eq!(rig.told().await, "list 2");
    assert_eq!(rig.state, fake.state(PREFIX));
}

/// Waits for one more authentication than before: the files of a connection are compared every 5 s.
async fn authenticated(fake: &FakeEtcd, before: usize) {
    let again = async {
        while fake.counts().authentications == before {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(DEADLINE, again).await.expect("in time");
}

/// etcd's JSON web tokens expire while a watch is open, which goes on; a read of the head does not. The same if its users change.
#[tokio::test]
async fn a_token_that_expires_beside_a_watch_is_renewed_without_a_list() {
    for rejects in [
        (Code::Unauthenticated, "etcdserver: invalid auth token"),
        (Code::InvalidArgument, "etcdserver: revision of auth store is old"),
    ] {
        let fake = FakeEtcd::new();
        fake.set(|store| (store.version, store.rejects) = ("3.4.23", rejects));
        fake.write("a=1");
        fake.set(|store| (store.user, store.token) = (Some(("reader", "secret")), "one".to_owned()));
        let gate = fake.member().await;
        let directory = tempfile::tempdir().unwrap();
        let credentials = Some(("reader".to_owned(), file(&directory, "password", "secret")));
        let mut rig = Rig::start(EtcdConfig { credentials, ..config(&[&gate]) });
        rig.told().await;
        let before = fake.counts().authentications;
        fake.set(|store| store.token = "two".to_owned());
        authenticated(&fake, before).await;
        fake.write("a=2");
        assert_eq!((rig.told().await, rig.lists()), ("3 ~a=2".to_owned(), 1), "{rejects:?}");
    }
}

#[tokio::test]
async fn a_connection_ends_when_a_file_that_it_was_made_from_changes() {
    let fake = FakeEtcd::new();
    fake.write("a=1");
    fake.set(|store| (store.user, store.token) = (Some(("reader", "secret")), "one".to_owned()));
    let gate = fake.member().await;
    let directory = tempfile::tempdir().unwrap();
    let password = file(&directory, "password", "secret");
    let mut rig = Rig::start(EtcdConfig { credentials: Some(("reader".to_owned(), password)), ..config(&[&gate]) });
    rig.told().await;
    let before = fake.counts().authentications;
    fake.set(|store| store.user = Some(("reader", "other")));
    file(&directory, "password", "other");
    authenticated(&fake, before).await;
    fake.write("a=2");
    assert_eq!((rig.told().await, rig.lists(), rig.history_rewrites), ("3 ~a=2".to_owned(), 1, 0));
}

#[tokio::test]
async fn tls_connects_only_to_trusted_servers() {
    let directory = tempfile::tempdir().unwrap();
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(vec!["etcd.example".to_owned()]).unwrap();
    let fake = FakeEtcd::new();
    fake.write("a=1");
    let identity = ServerIdentity::from_pem(cert.pem(), signing_key.serialize_pem());
    let server = Server::builder().tls_config(ServerTlsConfig::new().identity(identity)).unwrap();
    let gate = Gate::to(fake.listen(server).await).await;
    let endpoint = format!("https://127.0.0.1:{}", gate.port());
    let config = EtcdConfig { endpoints: vec![endpoint.parse().unwrap()], ..config(&[&gate]) };

    let ca = file(&directory, "ca.crt", &cert.pem());
    let named =
        TlsOptions { authority: Some(ca.clone()), server_name: Some("etcd.example".to_owned()), identity: None };
    let mut rig = Rig::start(EtcdConfig { tls: named.clone(), ..config.clone() });
    assert_eq!(rig.told().await, "list 2");
    drop(rig);
    let unnamed = TlsOptions { authority: Some(ca), ..TlsOptions::default() };
    let rig = Rig::start(EtcdConfig { tls: unnamed, ..config.clone() });
    rig.error("not valid for name").await;
    drop(rig);
    let plain = Rig::start(EtcdConfig { endpoints: vec![gate.url().parse().unwrap()], ..config.clone() });
    plain.error(&gate.url()).await;

    let missing = TlsOptions { authority: Some(directory.path().join("none")), ..TlsOptions::default() };
    let error = EtcdSource::check(&EtcdConfig { tls: missing, ..config.clone() }).unwrap_err();
    assert!(error.contains("none cannot be read: No such file"), "{error}");
    EtcdSource::check(&EtcdConfig { tls: named, ..config }).unwrap();
}

#[tokio::test]
async fn a_page_of_large_values_is_read_in_smaller_ones() {
    let fake = FakeEtcd::new();
    for n in 0..40 {
        fake.write(&format!("{n}={}", "x".repeat(2 << 20)));
    }
    let too_large = || Status::out_of_range("Error, decoded message length too large: found 70000000 bytes");
    fake.set(|store| store.ranges.push_back(Fault::Refuse(too_large())));
    let gate = fake.member().await;
    let config = EtcdConfig { answer_timeout: DEADLINE, ..config(&[&gate]) };
    let mut rig = Rig::start(config);
    assert_eq!(rig.told().await, "list 41");
    assert_eq!(rig.state.len(), 40);
    assert_eq!(rig.stats.list_failures.load(Ordering::Relaxed), 0);
}
