//! Process of a benchmark, and its cost.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::Child,
    time::{Duration, Instant},
};

use informerd::proto::pb::{self, informer_service_client::InformerServiceClient};

use crate::DEADLINE;

/// Process, killed on drop.
pub(crate) struct Running(pub(crate) Child);

/// Waits until informerd is synced, and returns its number of objects.
pub(crate) async fn synced(address: &str) -> usize {
    let started = Instant::now();
    let mut client = None;
    loop {
        assert!(started.elapsed() < DEADLINE, "it is synced in time");
        tokio::time::sleep(Duration::from_millis(2)).await;
        if client.is_none() {
            client = InformerServiceClient::connect(address.to_owned()).await.ok();
        }
        let Some(client) = &mut client else { continue };
        let answer = client.list_resources(pb::ListResourcesRequest {}).await.unwrap().into_inner();
        if answer.resources[0].state() == pb::SyncState::Synced {
            return answer.resources[0].objects as usize;
        }
    }
}

/// Returns a figure of the memory of a process, in KiB.
pub(crate) fn memory(pid: u32, name: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Returns the total processor time of a process in seconds; the kernel counts hundredths.
pub(crate) fn processor(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    let ticks = after_name.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<f64>().unwrap());
    ticks.sum::<f64>() / 100.0
}

// === impl Running ===

impl Running {
    /// Waits for a reflector's report, and returns its number of objects.
    pub(crate) fn told(&mut self) -> usize {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line.trim().parse().expect("a number of objects")
    }

    /// Returns a figure of the process's memory, in KiB.
    pub(crate) fn memory(&self, name: &str) -> f64 {
        memory(self.0.id(), name)
    }

    /// Returns its processor time in seconds.
    pub(crate) fn processor(&self) -> f64 {
        processor(self.0.id())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
