//! Memory that the control groups of this process allow.

use std::{fs, path::Path};

/// Divisor of the limit: this part of it may be held for clients.
const SHARE: u64 = 4;
/// Bytes that may be held for clients if there is no limit.
const WITHOUT_LIMIT: usize = 1 << 30;

/// Returns the bytes that may be held for clients: a quarter of the limit, if there is one.
pub(super) fn share(root: &Path) -> usize {
    let share = limit(root).and_then(|limit| usize::try_from(limit / SHARE).ok());
    share.unwrap_or(WITHOUT_LIMIT)
}

/// Returns the least limit of the groups of this process, of version 2 or 1. In a container, possibly only the innermost group
/// is visible, at the root.
fn limit(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let limits = groups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, group) = rest.split_once(':')?;
        let (mount, file) = match controllers {
            "" => ("sys/fs/cgroup", "memory.max"),
            some if some.split(',').any(|name| name == "memory") => ("sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => return None,
        };
        let mount = root.join(mount);
        let group = mount.join(group.trim_start_matches('/'));
        let groups = group.ancestors().take_while(|group| group.starts_with(&mount));
        groups.filter_map(|group| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok()).min()
    });
    // Version 1 has a number for no limit.
    limits.min().filter(|limit| *limit < 1 << 50)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a root directory with these files.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn client_memory_is_a_quarter_of_the_lowest_cgroup_limit_or_1_gib() {
        let none = 1 << 30;
        for (files, expected) in [
            (&[][..], none),
            (&[("proc/self/cgroup", "0::/\n")], none),
            (&[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "max\n")], none),
            (&[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "536870912\n")], 128 << 20),
            (
                &[
                    ("proc/self/cgroup", "0::/a.slice/b\n"),
                    ("sys/fs/cgroup/a.slice/memory.max", "4096\n"),
                    ("sys/fs/cgroup/a.slice/b/memory.max", "8192\n"),
                ],
                1024,
            ),
            (
                &[
                    ("proc/self/cgroup", "5:cpu:/x\n4:hugetlb,memory:/docker/1\n0::/\n"),
                    ("sys/fs/cgroup/memory/memory.limit_in_bytes", "8192\n"),
                ],
                2048,
            ),
            (
                &[
                    ("proc/self/cgroup", "4:memory:/\n"),
                    ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ],
                none,
            ),
        ] {
            assert_eq!(share(machine(files).path()), expected, "{files:?}");
        }
    }
}
