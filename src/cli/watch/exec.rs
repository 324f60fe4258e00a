//! Command that runs for each event, one at a time.

use std::{
    io,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use tokio::{
    io::AsyncWriteExt,
    process::{Child, Command},
    time::timeout,
};

use crate::{cli::print::Event, proto::pb};

/// Command of a shell, with the time that it may take.
#[derive(Debug, Clone)]
pub(super) struct EventCommand<'a> {
    pub(super) command: &'a str,
    pub(super) resource: &'a str,
    pub(super) timeout: Duration,
}

/// Kills the processes of a command when it is dropped before their end.
struct Group(Child);

// === impl EventCommand ===

impl EventCommand<'_> {
    /// Runs the command for an event, with the event in its environment, and as a line of JSON on its standard input. Returns a note
    /// if it did not succeed. When the future is dropped, the processes are killed.
    pub(super) async fn run(&self, event: &Event) -> Option<String> {
        let pb::Object { namespace, name, .. } = &event.object;
        let of = || format!("{} of {}/{namespace}/{name}", event.type_name(), self.resource);
        match timeout(self.timeout, self.run_unlimited(event)).await {
            Ok(Ok(status)) if status.success() => None,
            Ok(Ok(status)) => Some(format!("# exec: {status} ({})", of())),
            Ok(Err(error)) => Some(format!("# exec: cannot run sh: {error} ({})", of())),
            Err(_) => Some(format!("# exec: killed after {:?}, --exec-timeout ({})", self.timeout, of())),
        }
    }

    async fn run_unlimited(&self, event: &Event) -> io::Result<ExitStatus> {
        let pb::Object { namespace, name, uid, resource_version, .. } = &event.object;
        let mut command = Command::new("sh");
        command
            .args(["-c", self.command])
            .env("INFORMERD_EVENT", event.type_name())
            .env("INFORMERD_CAUSE", event.cause_name())
            .env("INFORMERD_RESOURCE", self.resource)
            .env("INFORMERD_NAMESPACE", namespace)
            .env("INFORMERD_NAME", name)
            .env("INFORMERD_UID", uid)
            .env("INFORMERD_OBJECT_VERSION", resource_version)
            .env("INFORMERD_RESOURCE_VERSION", &event.resource_version)
            .stdin(Stdio::piped())
            // All that it starts ends with it.
            .process_group(0);
        let mut group = Group(command.spawn()?);
        let input = group.0.stdin.take();
        let writing = async {
            if let Some(mut input) = input {
                // A command that does not read its input is no error.
                drop(input.write_all(event.line().as_bytes()).await);
            }
        };
        let ((), ended) = tokio::join!(writing, group.0.wait());
        ended
    }
}

// === impl Group ===

impl Drop for Group {
    fn drop(&mut self) {
        let id = self.0.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed()));
        if let Some(id) = id {
            // An error means that it has ended by itself.
            rustix::process::kill_process_group(id, rustix::process::Signal::KILL).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Event {
        let object = pb::Object { namespace: "shop".to_owned(), name: "web".to_owned(), ..pb::Object::default() };
        Event {
            change: pb::EventType::Modified,
            cause: pb::Cause::Unspecified,
            resource_version: "x.8".to_owned(),
            object,
            old: None,
            time: None,
            resource: None,
        }
    }

    async fn run(command: &str, timeout: Duration) -> Option<String> {
        EventCommand { command, resource: "pods", timeout }.run(&event()).await
    }

    #[tokio::test]
    async fn a_command_has_the_event_in_its_environment_and_on_its_input() {
        let is_there = r#"test "$INFORMERD_EVENT $INFORMERD_RESOURCE $INFORMERD_NAMESPACE/$INFORMERD_NAME $INFORMERD_RESOURCE_VERSION" = \
            "MODIFIED pods shop/web x.8" && grep -q '"name":"web"'"#;
        assert_eq!(run(is_there, Duration::from_secs(60)).await, None);
        let failed = run("exit 3", Duration::from_secs(60)).await.unwrap();
        assert_eq!(failed, "# exec: exit status: 3 (MODIFIED of pods/shop/web)");
    }

    #[tokio::test]
    async fn a_command_ends_at_its_timeout() {
        let note = run("sleep 1000", Duration::from_millis(1)).await.unwrap();
        assert_eq!(note, "# exec: killed after 1ms, --exec-timeout (MODIFIED of pods/shop/web)");
    }

    #[tokio::test]
    async fn a_command_that_is_cut_off_is_killed_with_what_it_started() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let command = format!("sleep 1000 & echo $! > {}; wait", file.display());
        let written = || std::fs::read_to_string(&file).unwrap_or_default();
        let started = async {
            while !written().ends_with('\n') {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            note = run(&command, Duration::from_secs(1000)) => panic!("{note:?}"),
            () = started => {}
        }
        let pid: i32 = written().trim().parse().unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        // Killed processes are there until their parent has read their status.
        while rustix::process::test_kill_process(pid).is_ok()
            && !std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
                .unwrap_or_default()
                .contains(") Z ")
        {
            tokio::task::yield_now().await;
        }
    }
}
