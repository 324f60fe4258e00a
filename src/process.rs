//! Load of this process, under the names that every Prometheus client library uses. They are read from `/proc`, which only Linux
//! has; elsewhere there are no such metrics.

use std::{
    fmt, fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};
use rustix::{
    param::{clock_ticks_per_second, page_size},
    process::{Resource, getrlimit},
};

/// Load of this process at one moment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ProcessLoad {
    /// Time on processors, in seconds.
    cpu: f64,
    resident_bytes: u64,
    virtual_bytes: u64,
    started_at: SystemTime,
    open_files: usize,
}

/// Returns the source commit of this build; empty when unknown. `INFORMERD_COMMIT` sets it when the crate is compiled.
pub(crate) fn commit() -> &'static str {
    option_env!("INFORMERD_COMMIT").filter(|commit| *commit != "unknown").unwrap_or_default()
}

/// Collector of the load.
#[derive(Debug)]
pub(crate) struct ProcessCollector;

// === impl ProcessLoad ===

impl ProcessLoad {
    /// Reads the load; `None` where there is no `/proc`.
    pub(crate) fn read() -> Option<Self> {
        let read = |path| fs::read_to_string(path).ok();
        let parsed = Self::parse(&read("/proc/self/stat")?, &read("/proc/self/statm")?, &read("/proc/stat")?)?;
        // The directory that is being read is one of them.
        let open_files = fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1);
        Some(Self { open_files, ..parsed })
    }

    /// Returns the resident memory, in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.resident_bytes
    }

    /// Returns the time at which the process began.
    pub(crate) fn started_at(&self) -> SystemTime {
        self.started_at
    }

    fn parse(stat: &str, memory: &str, system: &str) -> Option<Self> {
        let ticks = clock_ticks_per_second() as f64;
        // The name of the program may have spaces and brackets.
        let (_, fields) = stat.rsplit_once(')')?;
        // From the third field on.
        let values: Vec<u64> = fields.split_whitespace().map(|field| field.parse().unwrap_or_default()).collect();
        let (user, kernel, began) = (*values.get(11)?, *values.get(12)?, *values.get(19)?);
        let mut pages = memory.split_whitespace().map_while(|field| field.parse::<u64>().ok());
        let boot = system.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())?;
        let page = page_size() as u64;
        Some(Self {
            cpu: (user + kernel) as f64 / ticks,
            virtual_bytes: pages.next()? * page,
            resident_bytes: pages.next()? * page,
            started_at: UNIX_EPOCH + Duration::from_secs(boot) + Duration::from_secs_f64(began as f64 / ticks),
            open_files: 0,
        })
    }
}

// === impl ProcessCollector ===

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(load) = ProcessLoad::read() else { return Ok(()) };
        let help = "User and system time of this process.";
        let cpu = encoder.encode_descriptor("process_cpu", help, Some(&Unit::Seconds), MetricType::Counter)?;
        ConstCounter::new(load.cpu).encode(cpu)?;
        let started = load.started_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let limit = getrlimit(Resource::Nofile).current;
        for (name, unit, help, value) in [
            ("process_resident_memory", Some(&Unit::Bytes), "Resident memory.", load.resident_bytes as f64),
            ("process_virtual_memory", Some(&Unit::Bytes), "Virtual memory.", load.virtual_bytes as f64),
            ("process_start_time", Some(&Unit::Seconds), "Time at which this process began.", started),
            ("process_open_fds", None, "Open file descriptors.", load.open_files as f64),
            (
                "process_max_fds",
                None,
                "Limit on open file descriptors.",
                limit.map_or(f64::INFINITY, |most| most as f64),
            ),
        ] {
            let gauge = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
            ConstGauge::new(value).encode(gauge)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_those_of_proc_5() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 0 0 0 0 250 150 0 0 20 0 5 0 1000 0 0 0";
        let load = ProcessLoad::parse(stat, "30 20 10 1 0 9 0\n", "cpu 1\nbtime 1700000000\n").unwrap();
        let (ticks, page) = (clock_ticks_per_second() as f64, page_size() as u64);
        assert!((load.cpu - 400.0 / ticks).abs() < 1e-9);
        assert_eq!((load.virtual_bytes, load.resident_bytes), (30 * page, 20 * page));
        let started = load.started_at.duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        assert!((started - 1_700_000_000.0 - 1000.0 / ticks).abs() < 1e-3);
        assert_eq!(ProcessLoad::parse("7 (x) S 1", "30 20", "btime 1"), None);
    }

    #[test]
    fn this_process_has_memory_and_began_in_the_past() {
        let load = ProcessLoad::read().unwrap();
        assert!(load.resident_bytes > 1 << 20 && load.open_files > 2, "{load:?}");
        assert!(load.started_at <= SystemTime::now() + Duration::from_secs(1), "{load:?}");
    }
}
