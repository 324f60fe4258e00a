//! Lists at a fixed interval in place of a watch: of an API whose lists have no version to watch from, as that of metrics.k8s.io,
//! or that serves no watches of the resource (405).

use std::{sync::Arc, time::Duration};

use futures_util::stream;
use tokio::time::{Instant, sleep};

use super::{
    list,
    shared::{KubeShared, ObjectList},
};
use crate::{
    cache::{Delta, ListVersion, Problem, ProblemReason, SourceError, Watch},
    model::{Event, ResourceVersion},
    source::digest,
};

/// Lists in place of a watch.
struct Poll {
    shared: Arc<KubeShared>,
    version: ResourceVersion,
    /// Digest of the last list without a version of its own; `None` before the first one.
    content: Option<String>,
    ends_at: Instant,
}

/// Interval of the lists.
const POLL_INTERVAL: Duration = Duration::from_secs(10);

// === impl KubeShared ===

impl KubeShared {
    /// Reports that the resource is listed in place of a watch, and why.
    pub(super) fn note_polling(&self, why: &str) {
        let message = format!("listed every {POLL_INTERVAL:?} in place of a watch: {why}");
        self.problems.set(&Problem::new(ProblemReason::UpstreamPolled, "", message));
    }

    /// Returns the lists that stand in for a watch from a version. They end after the time of a watch, so that the next one is
    /// tried.
    pub(super) fn poll(self: &Arc<Self>, from: ResourceVersion) -> Watch {
        let ends_at = Instant::now() + self.config.watch_timeout.mul_f64(1.0 + fastrand::f64());
        let poll = Poll { shared: Arc::clone(self), version: from, content: None, ends_at };
        Box::pin(stream::try_unfold(poll, |mut poll| async move {
            let next = poll.next().await?;
            Ok(next.map(|delta| (delta, poll)))
        }))
    }
}

// === impl Poll ===

impl Poll {
    async fn next(&mut self) -> Result<Option<Delta>, SourceError> {
        let shared = &self.shared;
        // Within the bound of a silence, which may be shorter.
        sleep(POLL_INTERVAL.min(shared.health.max_silence() / 2)).await;
        if Instant::now() >= self.ends_at {
            return Ok(None);
        }
        let list = list::read(shared, &ListVersion::MostRecent).await?;
        shared.check_kind(&list).await?;
        shared.check_cluster().await?;
        let content = (list.version.is_empty()).then(|| content_of(&list));
        let is_same = match &content {
            Some(content) => self.content.as_ref() == Some(content),
            None => shared.known.lock().text_of(&self.version).is_some_and(|text| text == list.version),
        };
        if is_same {
            return Ok(Some(Delta::event(Event::Bookmark(self.version.clone()))));
        }
        let list = shared.settle(list, &ListVersion::NotOlderThan(self.version.clone()))?;
        (self.version, self.content) = (list.version.clone(), content);
        if !shared.known.lock().is_unversioned() && !shared.api.has_no_watch() {
            self.ends_at = Instant::now();
        }
        Ok(Some(Delta::Replace(list)))
    }
}

/// Returns a digest of all that a list has.
fn content_of(list: &ObjectList) -> String {
    let objects =
        list.objects.iter().map(|object| format!("{} {} {}", object.key(), object.uid(), digest::of_body(object)));
    let problems =
        list.problems.iter().map(|(_, problem)| problem).chain(list.unreadable.iter().map(|item| &item.problem));
    let mut lines: Vec<String> = objects.chain(problems.map(|problem| format!("! {problem}"))).collect();
    lines.sort_unstable();
    digest::of(lines.join("\n").as_bytes())
}
