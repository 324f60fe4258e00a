//! Parts of a resource that its cursors and their queues use.

use std::sync::Arc;

use super::{BroadcasterConfig, BroadcasterStats, Frame, Past, blocks::Blocks, writer_signals::WriterSignals};
use crate::model::ResourceVersion;

/// Past of a resource, its blocks, and the signals to its writer.
pub(super) struct Shared<F: Frame> {
    pub(super) past: Arc<Past>,
    pub(super) blocks: Arc<Blocks<F>>,
    pub(super) config: BroadcasterConfig,
    pub(super) stats: Arc<BroadcasterStats>,
    pub(super) signals: WriterSignals,
}

// === impl Shared ===

impl<F: Frame> Shared<F> {
    pub(super) fn new(past: Arc<Past>, config: BroadcasterConfig) -> Self {
        let stats: Arc<BroadcasterStats> = Arc::default();
        Self {
            blocks: Arc::new(Blocks::new(Arc::clone(&past), config.retention.size, Arc::clone(&stats))),
            past,
            signals: WriterSignals::new(config.block_timeout, Arc::clone(&stats)),
            config,
            stats,
        }
    }

    /// Returns the oldest version to resume from.
    pub(super) fn oldest(&self) -> ResourceVersion {
        self.past.history().lock().oldest().clone()
    }
}

debug_fields!([F: Frame] Shared<F> { past });
