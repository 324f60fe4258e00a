//! Choice of the endpoint, contact with etcd, and progress.

use tempfile::TempDir;
use tonic::{
    Status,
    transport::{Identity as ServerIdentity, Server, ServerTlsConfig},
};

use super::*;
use crate::{cache::SyncState, source::etcd::tests::play::Fault};

fn file(directory: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = directory.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[tokio::test]
async fn while_somebody_waits_etcd_is_asked_often() {
    let play = Play::new();
    play.write("a=1");
    let gate = play.member().await;
    let config = EtcdConfig { heartbeat: Duration::from_secs(3600), ..config(&[&gate]) };
    let mut rig = Rig::start(config);
    rig.told().await;
    play.apply(vec![(b"/elsewhere".to_vec(), Some(b"x".to_vec()))]);
    assert!(timeout(Duration::from_millis(50), rig.next()).await.is_err(), "nobody asks");
    assert_eq!(play.counts().progress, 0);
    let waiting = rig.health.demand().wait();
    assert_eq!(rig.next().await, "bookmark 3");
    play.apply(vec![(b"/elsewhere".to_vec(), None)]);
    while rig.next().await != "bookmark 4" {}
    drop(waiting);
    let asked = timeout(DEADLINE, async {
        // One request may be under way.
        let mut asked = play.counts().progress;
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            match play.counts().progress {
                same if same == asked => return asked,
                more => asked = more,
            }
        }
    });
    assert!(asked.await.expect("it stops asking") >= 2);
    assert_eq!((rig.lists(), play.counts().watches), (1, 1));
}

/// Progress may run ahead of events before 3.4.31 and 3.5.13: the source does not request it (etcd #15220).
#[tokio::test]
async fn an_old_server_is_asked_for_its_head_instead() {
    let play = Play::new();
    play.set(|store| store.version = "3.4.23");
    play.write("a=1");
    let gate = play.member().await;
    let mut rig = Rig::of(&gate);
    rig.told().await;
    let _waiting = rig.health.demand().wait();
    let ranges = play.counts().ranges;
    let asked = async {
        while play.counts().ranges < ranges + 3 {
            assert!(timeout(Duration::from_millis(10), rig.next()).await.is_err(), "nothing is concluded from it");
        }
    };
    timeout(DEADLINE, asked).await.expect("it is asked");
    assert_eq!(play.counts().progress, 0);
    assert_eq!(rig.health.state(), SyncState::Syncing, "nobody applies what the rig reads");
    play.write("a=2");
    assert_eq!(rig.told().await, "3 ~a=2");
    assert_eq!(play.counts().watches, 1);
}

#[tokio::test]
async fn a_server_that_says_nothing_is_given_up() {
    for version in ["3.6.0", "3.4.23"] {
        let play = Play::new();
        play.write("a=1");
        play.set(|store| store.version = version);
        let (first, second) = (play.member().await, play.member().await);
        let mut rig = Rig::start(config(&[&first, &second]));
        rig.told().await;
        first.freeze(true);
        play.write("a=2");
        assert_eq!(rig.told().await, "3 ~a=2", "over the other member");
        assert_eq!((second.accepted(), rig.lists()), (1, 1));
    }
}

#[tokio::test]
async fn a_member_that_hangs_in_a_call_is_given_up() {
    let play = Play::new();
    play.write("a=1");
    play.set(|store| store.ranges.push_back(Fault::Hang));
    let (first, second) = (play.member().await, play.member().await);
    let mut rig = Rig::start(config(&[&first, &second]));
    assert_eq!(rig.told().await, "list 2");
    assert_eq!((first.accepted(), second.accepted()), (1, 1));
    play.set(|store| store.watches.push_back(Fault::Hang));
    second.cut();
    play.write("a=2");
    assert_eq!(rig.told().await, "3 ~a=2");
}

#[tokio::test]
async fn endpoints_are_changed_forward_only_and_when_one_fails() {
    let play = Play::new();
    play.write("a=0");
    let gates = [play.member().await, play.member().await, play.member().await];
    let mut rig = Rig::start(config(&[&gates[0], &gates[1], &gates[2]]));
    rig.told().await;
    let accepted = || [gates[0].accepted(), gates[1].accepted(), gates[2].accepted()];
    assert_eq!(accepted(), [1, 0, 0]);
    for (cut, expected) in [(0, [1, 1, 0]), (1, [1, 1, 1]), (2, [2, 1, 1])] {
        gates[cut].cut();
        play.write(&format!("a={cut}x"));
        rig.told().await;
        assert_eq!(accepted(), expected, "cut {cut}");
    }
    gates[1].refuse(true);
    gates[0].cut();
    play.write("a=9");
    rig.told().await;
    assert_eq!(accepted(), [2, 1, 2], "the one that refuses is passed over");
    assert_eq!(rig.lists(), 1);
}

#[tokio::test]
async fn nobody_to_be_reached_is_told_for_every_endpoint() {
    let play = Play::new();
    let (first, second) = (play.member().await, play.member().await);
    let gone = config(&[&first, &second]);
    drop((first, second));
    tokio::task::yield_now().await;
    let urls = gone.endpoints.clone();
    let rig = Rig::start(gone);
    let error = rig.error("Connection refused").await;
    assert!(urls.iter().all(|url| error.contains(url)) && !error.contains('\n'), "{error}");
}

#[tokio::test]
async fn a_user_has_a_token_and_gets_another_when_it_is_no_longer_good() {
    let play = Play::new();
    play.write("a=1");
    play.set(|store| (store.user, store.token) = (Some(("reader", "secret")), "one".to_owned()));
    let gate = play.member().await;
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
    play.set(|store| store.token = "two".to_owned());
    let before = play.counts().authentications;
    gate.cut();
    play.write("a=2");
    assert_eq!(rig.told().await, "3 ~a=2");
    assert_eq!(play.counts().authentications, before + 1);
    play.set(|store| store.user = None);
    gate.cut();
    play.write("a=3");
    assert_eq!(rig.told().await, "4 ~a=3", "who asks nobody takes everybody");
}

#[tokio::test]
async fn a_token_that_expires_is_renewed() {
    let play = Play::new();
    play.write("a=1");
    play.set(|store| (store.user, store.token) = (Some(("reader", "secret")), "one".to_owned()));
    let gate = play.member().await;
    let directory = tempfile::tempdir().unwrap();
    let password = file(&directory, "password", "secret");
    let credentials = Some(("reader".to_owned(), password));
    let mut rig = Rig::start(EtcdConfig { credentials, ..config(&[&gate]) });
    rig.told().await;
    // A list over the same connection, with a token that has expired.
    play.set(|store| {
        store.token = "two".to_owned();
        let gone = store.response(|response| (response.canceled, response.compact_revision) = (true, 1));
        store.watches.push_back(Fault::Tell(vec![gone]));
    });
    gate.cut();
    assert_eq!(rig.told().await, "list 2");
    assert_eq!(rig.state, play.state(PREFIX));
}

#[tokio::test]
async fn tls_is_spoken_with_those_who_are_trusted() {
    let directory = tempfile::tempdir().unwrap();
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(vec!["etcd.example".to_owned()]).unwrap();
    let play = Play::new();
    play.write("a=1");
    let identity = ServerIdentity::from_pem(cert.pem(), signing_key.serialize_pem());
    let server = Server::builder().tls_config(ServerTlsConfig::new().identity(identity)).unwrap();
    let gate = Gate::to(play.listen(server).await).await;
    let endpoint = format!("https://127.0.0.1:{}", gate.port());
    let config = EtcdConfig { endpoints: vec![endpoint.clone()], ..config(&[&gate]) };

    let ca = file(&directory, "ca.crt", &cert.pem());
    let named = EtcdTls { ca: Some(ca.clone()), server_name: Some("etcd.example".to_owned()), identity: None };
    let mut rig = Rig::start(EtcdConfig { tls: named.clone(), ..config.clone() });
    assert_eq!(rig.told().await, "list 2");
    drop(rig);
    let unnamed = EtcdTls { ca: Some(ca), ..EtcdTls::default() };
    let rig = Rig::start(EtcdConfig { tls: unnamed, ..config.clone() });
    rig.error("not valid for name").await;
    drop(rig);
    let plain = Rig::start(EtcdConfig { endpoints: vec![gate.url()], ..config.clone() });
    plain.error(&gate.url()).await;

    let missing = EtcdTls { ca: Some(directory.path().join("none")), ..EtcdTls::default() };
    let error = EtcdSource::check(&EtcdConfig { tls: missing, ..config.clone() }).unwrap_err();
    assert!(error.contains("none cannot be read: No such file"), "{error}");
    EtcdSource::check(&EtcdConfig { tls: named, ..config }).unwrap();
}

#[tokio::test]
async fn a_page_of_large_values_is_read_in_smaller_ones() {
    let play = Play::new();
    for n in 0..40 {
        play.write(&format!("{n}={}", "x".repeat(2 << 20)));
    }
    let too_large = || Status::out_of_range("Error, decoded message length too large: found 70000000 bytes");
    play.set(|store| store.ranges.push_back(Fault::Refuse(too_large())));
    let gate = play.member().await;
    let config = EtcdConfig { answer_timeout: DEADLINE, ..config(&[&gate]) };
    let mut rig = Rig::start(config);
    assert_eq!(rig.told().await, "list 41");
    assert_eq!(rig.state.len(), 40);
    assert_eq!(rig.stats.list_failures.load(Ordering::Relaxed), 0);
}
