//! Root directory with only the files of the image, and informerd in it, as in a container: the first process of its own, and not
//! root.

use std::{
    env, fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::LazyLock,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::{DEADLINE, etcd::program, manifest::text};

/// File system of one container.
pub(crate) struct Root(TempDir);

/// First process of a container, with the outer process that waits for it.
pub(crate) struct First {
    outer: Child,
    pid: u32,
}

/// Means of confinement that the user of these tests has.
enum Confined {
    /// Process namespace; a user other than root becomes another one only by a mapping of its own id.
    Namespace { as_user: &'static str, as_group: &'static str },
    /// Among all processes, for root in a container that may create no namespace.
    RootOnly,
}

static CONFINED: LazyLock<Confined> = LazyLock::new(|| {
    let namespace = if is_root() { ("--setuid", "--setgid") } else { ("--map-user", "--map-group") };
    let (as_user, as_group) = namespace;
    let tried = Command::new("unshare").args(["--pid", "--fork", &format!("{as_user}=1"), "true"]).output();
    match tried {
        Ok(tried) if tried.status.success() => Confined::Namespace { as_user, as_group },
        _ if is_root() => Confined::RootOnly,
        tried => panic!("neither root nor user namespaces: {tried:?}"),
    }
});

/// User and entrypoint of the image, read from the Dockerfile, so that the tests run what it says.
pub(crate) struct Image {
    pub(crate) user: u32,
    pub(crate) group: u32,
    pub(crate) entrypoint: Vec<String>,
}

// === impl Image ===

impl Image {
    pub(crate) fn read() -> Self {
        let dockerfile = text("Dockerfile");
        let last = |instruction: &str| {
            let found = dockerfile.lines().rev().find_map(|line| line.strip_prefix(instruction));
            found.unwrap_or_else(|| panic!("no {instruction}")).trim()
        };
        let (user, group) = last("USER").split_once(':').unwrap();
        Self {
            user: user.parse().unwrap(),
            group: group.parse().unwrap(),
            entrypoint: serde_json::from_str(last("ENTRYPOINT")).unwrap(),
        }
    }
}

// === impl Root ===

impl Root {
    /// Creates a root with the files of `deploy/image`.
    pub(crate) fn of_image() -> Self {
        let directory = TempDir::new().unwrap();
        // Other users need access, and own nothing.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        copy(&program("INFORMERD_IMAGE"), directory.path());
        Self(directory)
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path.trim_start_matches('/'))
    }

    pub(crate) fn write(&self, path: &str, bytes: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // This root has a hard link to the image's file, which must stay as it is.
        drop(fs::remove_file(&path));
        fs::write(path, bytes).unwrap();
    }

    /// Creates a directory that every user may write to.
    pub(crate) fn directory(&self, path: &str) {
        let path = self.path(path);
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }

    /// Returns a command of the root, with an empty environment.
    pub(crate) fn command(&self, user: u32, group: u32, words: &[String]) -> Command {
        let mut command = match &*CONFINED {
            Confined::Namespace { as_user, as_group } => {
                let mut command = Command::new(tool("unshare"));
                command.args(["--pid", "--fork", "--wd=/"]).arg(format!("{as_group}={group}"));
                command.arg(format!("{as_user}={user}")).arg("--root");
                command
            }
            Confined::RootOnly => {
                let mut command = Command::new(tool("chroot"));
                command.arg(format!("--userspec={user}:{group}"));
                command
            }
        };
        command.arg(self.0.path()).args(words).env_clear().stdin(Stdio::null());
        command
    }

    /// Returns the entrypoint of the image, as its user.
    pub(crate) fn informerd(&self, arguments: &[&str]) -> Command {
        let Image { user, group, entrypoint } = Image::read();
        let arguments = arguments.iter().map(|argument| (*argument).to_owned());
        self.command(user, group, &entrypoint.into_iter().chain(arguments).collect::<Vec<_>>())
    }
}

/// Returns the path of a tool, for a command whose environment has no PATH.
fn tool(name: &str) -> PathBuf {
    let path = env::var_os("PATH").unwrap();
    let found = env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{name} is not on the PATH"))
}

pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir(&to).unwrap();
            copy(&entry.path(), &to);
        } else if fs::hard_link(entry.path(), &to).is_err() {
            fs::copy(entry.path(), &to).unwrap();
        }
    }
}

// === impl First ===

impl First {
    pub(crate) async fn spawn(command: &mut Command) -> Self {
        let mut outer = command.spawn().unwrap();
        let (mut pid, started) = (outer.id(), Instant::now());
        if matches!(*CONFINED, Confined::Namespace { .. }) {
            let children = format!("/proc/{pid}/task/{pid}/children");
            let child = || fs::read_to_string(&children).ok()?.trim().parse().ok();
            // Without a child it may have ended; the callers notice that.
            while outer.try_wait().unwrap().is_none() {
                if let Some(child) = child() {
                    pid = child;
                    break;
                }
                assert!(started.elapsed() < DEADLINE, "{command:?} does not begin");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        Self { outer, pid }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.pid.to_string()]).status().unwrap();
        assert!(sent.success(), "{name} to a process that is over");
    }

    pub(crate) fn has_ended(&mut self) -> Option<ExitStatus> {
        self.outer.try_wait().unwrap()
    }

    /// Waits for its end.
    pub(crate) async fn end(&mut self, within: Duration) -> io::Result<ExitStatus> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.has_ended() {
                return Ok(status);
            }
            if started.elapsed() > within {
                return Err(io::ErrorKind::TimedOut.into());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for First {
    fn drop(&mut self) {
        if self.has_ended().is_none() {
            drop(Command::new("kill").args(["-KILL", &self.pid.to_string()]).status());
        }
        drop(self.outer.wait());
    }
}
