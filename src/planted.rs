//! Bugs that are planted on purpose, so that the checkers of the integration tests can be checked: each has to be found.
//!
//! A place in the code asks `planted!(Name)` and does the wrong thing if so. Only a test plants, one bug at a time and for
//! its own thread; a test whose runtime has more threads plants on each of them. Without debug assertions the answer is the
//! constant `false`, and nothing of this is left.
//!
//! Deliberately not here: what each bug breaks, which stands at its place, and how it is found (`tests/integration/checker`,
//! `tests/integration/source_checker`, `cache/informer/tests/model.rs`).

/// Defines [`Bug`], and which checker has to find which bug.
macro_rules! bugs {
    ($($checker:ident { $($(#[$doc:meta])* $bug:ident,)* })*) => {
        /// The bugs, under the checker that has to find them: the one of the engine, the model of the order between
        /// threads, or the source checker with this upstream.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Bug {
            $($($(#[$doc])* $bug,)*)*
        }

        impl Bug {
            /// All of them, by the name of their checker.
            pub const ALL: &[(&'static str, &[Self])] = &[$((stringify!($checker), &[$(Self::$bug),*])),*];
        }
    };
}

bugs! {
    engine {
        // model
        /// An object that leaves a selection is told as if it were deleted.
        LeftIsDeleted,
        /// An object that enters a selection is told as MODIFIED.
        EnteredIsModified,
        /// An object that leaves a selection is forgotten without a word.
        LeavingIsUntold,

        // cache
        /// A resume misses the first batch after its version.
        ResumeTooLate,
        /// A resume is "from now".
        ResumeFromNow,
        /// A resume is accepted inside a relist.
        ResumeInsideGap,
        /// The oldest version of the history is refused.
        ResumeRefusedAtTheOldest,
        /// A version that is older than the history is accepted.
        ResumeBeforeTheOldest,
        /// A version of the future is served at once.
        FutureIsServed,
        /// A version of another lineage is served.
        LineageIsIgnored,
        /// The history evicts single events, not batches.
        HistoryEvictsHalfABatch,
        /// The history evicts when it is full, and not when it is more than full.
        HistoryEvictsTooEarly,
        /// One object that vanished in a relist's gap is not told of.
        RelistLosesADeletion,
        /// INFERRED is lost.
        InferredIsDeleted,
        /// An object that exists and cannot be served is deleted.
        NotServedIsDeleted,
        /// A relist tells of everything, changed or not.
        RelistRepeatsTheUnchanged,
        /// Other bytes at the same version are not served.
        BodiesAreNotCompared,
        /// Another uid under the same key is MODIFIED.
        AnotherUidIsModified,
        /// A deletion carries the object's last version, not its own.
        DeletionHasTheOldVersion,
        /// An index does not learn the new values of an object.
        IndexIsStale,
        /// A version to which more changes may come is distributed as complete.
        OpenVersionIsComplete,
        /// A resume from before an open version misses what has come at it.
        ResumeMissesTheRestOfAVersion,
        /// The history evicts some of the changes of a version, and counts the version as known.
        OldestInsideAnOpenVersion,
        /// A list at the version before an open one is taken for one of another history.
        RewoundBeforeAnOpenVersion,
        /// A list at the version before an open one takes back what was applied at it.
        ListTakesBackAnOpenVersion,
        /// Changes at a version that was complete before are not repeated for who resumes from it.
        LateChangesAreForgotten,
        /// The events of a transaction are batches of their own.
        TransactionIsSplit,
        /// A rewind is seen only by those whose cursor is still there.
        RewindIsUntoldWithoutACursor,
        /// A rewind replaces the state and ends nobody.
        RewindEndsNobody,

        // watch
        /// Every event of a batch carries the batch's version.
        VersionInsideABatch,
        /// A DELETED carries the new state.
        DeletedHasTheNewState,
        /// A change is routed by its new state alone.
        RoutedByTheNewState,
        /// A group does not get the first event of a wake.
        HoleInAWake,
        /// Who has all of a version that is open here gets the rest of it once more.
        OpenVersionIsSentAgain,
        /// The last change of an open version is replayed at that version.
        ReplayedOpenVersionIsComplete,
        /// Events that came during the initial events are skipped.
        HoleAfterTheSnapshot,
        /// The wake before the snapshot is told again.
        OverlapWithTheSnapshot,
        /// A hole under DROP is not announced.
        DropIsUntold,
        /// A hole under DROP is announced as one event smaller than it is.
        DropIsMiscounted,
        /// A hole under DROP is said to begin where it ends.
        DropBeginsAtItsEnd,
        /// An evicted client waits for ever.
        EvictionIsUntold,
        /// The writer waits for each of those that hold it back under BLOCK as long as for all of them.
        BlockBudgetIsOfEachClient,
        /// The writer waits for a client under BLOCK that has read nothing yet.
        NewClientBlocksAtOnce,
        /// A client under BLOCK is ended when others have spent the budget.
        EndedForWhatOthersSpent,
        /// A client under BLOCK counts as full as soon as another one is.
        EvictedWithoutBeingFull,
        /// Under COALESCE a client is not told that what it has is gone.
        CoalescingLosesADeletion,
        /// Under COALESCE another uid is MODIFIED.
        CoalescingMergesAcrossUids,
        /// What was replaced under its key is DELETED at the version of what replaced it.
        ReplacedIsDeletedAtTheNewVersion,
        /// A DELETED carries the last state that was merged, which the client never had.
        CoalescedDeletionHasTheLastState,
        /// `coalesced` is one more than it is.
        CoalescedIsMiscounted,
        /// What left no trace is not counted.
        VanishedIsNotCounted,
        /// The keys of a generation come by their first change.
        GenerationIsByTheFirstChange,
        /// The last message of a generation does not carry its version.
        GenerationEndsWithoutItsVersion,
        /// Every message of a generation carries its version.
        VersionInsideAGeneration,
        /// Whoever has been told the first part of a generation is said to have all of it.
        GenerationIsReachedWithItsFirstPart,
        /// What was merged is not told.
        GenerationIsForgotten,
        /// What the queue held when merging began is not told.
        QueueIsForgottenWhenMerging,
        /// A queue merges though it is not full.
        CoalescesWithoutBeingFull,
        /// Events of a full queue are told one by one, as long as the log has them.
        QueueIsToldWhenFull,
        /// A waiting client is not woken.
        WakeIsLost,
        /// The first event of a replay is told twice.
        ReplayRepeats,
        /// The last event of a replayed batch is forgotten.
        ReplayForgetsTheLast,
        /// A resume in between two versions goes back to the first.
        ReplayGoesBack,
        /// Events that lead over a relist do not say so.
        RelistIsUntold,
        /// A replay over a relist does not say so.
        ReplayedRelistIsUntold,
        /// A condition that is not met makes all of them be awaited again.
        UntilBeginsAnew,
        /// With a condition that is met, the next one counts as met.
        UntilSkipsACondition,
        /// An event that meets a condition is not tested for the next one.
        UntilMeetsOneWithEachEvent,

        // grpc
        /// A parked watch goes on at the head.
        ParkedGoesOnAtTheHead,
        /// A parked watch goes on in the history that came after its own.
        ParkedGoesOnInAnotherHistory,
        /// A watch that is parked inside a batch is told all of it again.
        ParkedInsideABatchRepeatsIt,
        /// A bookmark that leads over a relist does not say so.
        BookmarkHidesARelist,
        /// A bookmark is ahead of events that were not told.
        BookmarkAhead,
        /// A bookmark says less than is known.
        BookmarkBehind,
        /// The bookmark at the end of the initial events carries the version of now.
        SnapshotVersionOfNow,
        /// An object is skipped where one piece of the initial events ends.
        SkippedAtAChunkBoundary,
        /// Initial events are not selected.
        InitialEventsAreNotSelected,
        /// A draining bookmark carries the head's version, not the client's own.
        DrainingAtTheHead,
        /// A watch that is drained is said to be at the head.
        DrainSkipsTheQueue,
        /// A watch that is drained ends without its bookmark.
        DrainIsUntold,
        /// A watch goes on though the server drains.
        DrainIsIgnored,
        /// The trailers say OK whatever the last message was.
        EndsWellAlways,
        /// A page is of the state of now.
        PageFromTheStateOfNow,
        /// A page token is honoured whatever the query.
        PageOfAnotherQuery,
        /// A page that is not the last has no token.
        PageForgetsThatThereIsMore,
        /// A page begins with the last object of the one before.
        PageRepeatsTheLastObject,
        /// A snapshot is kept for ever.
        PageNeverExpires,
        /// Half as many snapshots are kept.
        PageIsForgottenEarly,
        /// A snapshot is kept for its first token only.
        PageIsKeptFromItsFirstToken,
        /// A state is served however old it is.
        MinVersionIsIgnored,
        /// A state is served only when it is newer than what was asked for.
        MinVersionIsToBePassed,
        /// A state that is too old is refused at once.
        MinVersionIsNotAwaited,
        /// Of events that come together only the last one is tested.
        UntilSeesTheLastOfAFrame,
        /// What has left the selection is still counted.
        UntilCountsWhatLeft,
        /// What can no longer be served is DELETED, and not counted any more.
        UntilCountsNoNotServed,
        /// The number of objects is told before all of them are known.
        UntilCountsTooEarly,
        /// A call goes on after its deadline.
        DeadlineIsIgnored,
        /// What the window has forgotten of the queue of a client under BLOCK is not told from the history.
        BlockedQueueIsForgotten,

        // groups that bulk threads fill
        /// A group that is deferred is not given the cycle in which it is.
        DeferredMissesItsFirstCycle,
        /// Filling of a deferred group is not noted: nothing more is put into its log.
        FilledStaysBehind,
        /// Readers of a deferred group are not woken.
        DeferredIsNotWoken,
        /// The bookmark of a deferred group says less than is known.
        DeferredBookmarkIsBehind,

        // what is retained
        /// Runs stay in the log that everybody has read, and those that are too old.
        LogIsNeverTrimmed,
        /// The window counts the bytes of what it has forgotten.
        ForgottenWakeIsCharged,
        /// The history counts the bytes of what it has evicted.
        EvictedHistoryIsCharged,
        /// A group without readers stays.
        VacantGroupIsKept,
        /// A group that has gone counts as deferred.
        EndedDeferralCounts,
    }

    threads {
        /// A version counts as distributed before its events are in the logs.
        DistributedBeforeTheLogs,
        /// Watchers get a change before the snapshot shows it.
        SnapshotAfterTheLogs,
        /// A reader waits without having looked again.
        ParksAfterLooking,
        /// A caller waits for a version without having looked again.
        WaitsAfterLooking,
        /// A bulk thread fills a group that the writer has taken back.
        GroupIsFilledByBoth,
        /// The writer takes back a group that bulk threads have not filled up to its own cycle.
        GroupIsTakenBackTooEarly,
        /// A deferred group counts as filled up to events that are not in its log yet.
        FilledBeforeTheRun,
        /// The bookmark of a deferred group carries the distributed version.
        BookmarkAboveFilled,
        /// A notice of new work that comes during a piece of work is lost.
        NoticeIsLost,
    }

    etcd {
        /// A watch begins after the revision of the list: of a prefix at rest etcd answers no request for progress.
        WatchBeginsAfterTheRevision,
        /// A restored cluster that has not come as far as before is followed.
        LowerRevisionIsFollowed,
        /// What was told last need not be told again after a break.
        BreakNeedsNoProof,
        /// A lower raft term is another history.
        LowerTermIsAnotherHistory,
        /// Bytes between quotes are JSON, whatever they are.
        AnyBytesAreJson,
        /// A value that becomes too large is deleted by the change itself.
        TooLargeIsADeletion,
    }

    kube {
        /// A deletion is the only change at its version.
        DeletionClosesItsVersion,
        /// The first bookmark at a version ends it.
        FirstBookmarkClosesAVersion,
        /// A watch goes on after a version of which only a part has come.
        OpenVersionIsResumedAfter,
        /// Further changes at a version of which a part is known are another history.
        OpenVersionHasNoMore,
        /// Of several changes at a version only the last one is known.
        LastChangeOfAVersionIsAll,
        /// A later start takes a version of which only a part has come for complete.
        SavedVersionIsComplete,
        /// A watch that broke goes on without a proof of its history.
        BrokenWatchNeedsNoProof,
        /// A watch that the API has closed goes on without a proof of its history, however long ago that was.
        CloseIsAlwaysAProof,
        /// The head is requested without the configured selectors.
        HeadIgnoresTheSelectors,
        /// A list that is too large for one answer is requested in one answer again.
        IncompleteListIsNotPaged,
        /// The pages before one that has expired are the whole list.
        ExpiredPageEndsTheList,
        /// A peer that gives no sign of life is alive.
        SilenceIsLife,
        /// A token has the line end of its file.
        TokenIsNotTrimmed,
        /// The file of a token is read once.
        TokenIsReadOnce,
        /// Initial events are waited for as long as the watch is open.
        InitialEventsHaveNoBound,
        /// Retry-After does not count.
        RetryAfterIsIgnored,
        /// What a field selector selects anew, at an old version, is another history.
        AnotherSelectionIsAnotherHistory,
        /// A client that resumes where an earlier start was keeps what a list hides.
        ListHidesWhatWasSentAhead,
        /// A watch that broke goes on from a version that is counted here without a proof of its history.
        CountedVersionNeedsNoProof,
    }

    relay {
        /// A server with another name is followed without a proof of its history.
        AnyServerVouches,
        /// Nothing is replayed of what came before the last known change if that object has changed since.
        LaterChangeIsAProof,
        /// A server that stays behind is waited for without a bound.
        BehindIsAwaitedForEver,
        /// Each event of a batch completes its version.
        EventCompletesItsVersion,
        /// The state of the origin is not passed on.
        OriginIsAlwaysSynced,
        /// What a relist upstream has deleted is deleted by a change.
        RelistIsAChange,
    }

    files {
        /// Another directory at the path is taken for the one that was served.
        AnotherRootIsTheSame,
        /// An empty directory in the place of the one that was served deletes everything.
        EmptyRootIsADeletion,
        /// A directory that cannot be read is empty.
        UnreadableIsEmpty,
        /// A file is read while somebody writes it.
        HalfAFileIsRead,
        /// A file counts of whose last modification no notice has come.
        UnnoticedFileIsRead,
        /// A file with fewer objects than before counts at once.
        FewerObjectsCountAtOnce,
        /// An object that its file does not have any more is deleted at once.
        LostObjectIsNotAwaited,
        /// An object that its file does not have any more is deleted though another file does not count yet.
        UnfinishedFileIsNotAwaited,
        /// A file that becomes unusable has no objects.
        UnusableIsEmpty,
    }

    stream {
        /// After the end of a writer the objects count as confirmed: what the next one does not repeat is served for ever.
        ObjectsNeedNoConfirmation,
        /// What the next writer does not confirm is served for ever.
        UnconfirmedIsKept,
        /// A writer that sends no event at all deletes everything.
        SilentWriterConfirms,
        /// The end of a stream is no failure.
        EndIsNotStale,
        /// The next writer continues the event in which the one before it broke off.
        TornEventIsContinued,
        /// A text within an event may go over several lines: an event that breaks off takes the next one with it.
        TornEventTakesTheNext,
    }
}

impl Bug {
    /// The bugs that the checker of this name has to find.
    pub fn of(checker: &str) -> &'static [Self] {
        Self::ALL.iter().find(|(name, _)| *name == checker).map_or(&[], |(_, bugs)| bugs)
    }
}

/// Whether a bug is planted here, to be asked last in a condition: being asked counts as having been reached.
macro_rules! planted {
    ($bug:ident) => {
        $crate::planted::is_planted($crate::planted::Bug::$bug)
    };
}
pub(crate) use planted;

#[cfg(debug_assertions)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// The bugs whose place was reached, by whichever thread.
#[cfg(debug_assertions)]
static REACHED: parking_lot::Mutex<Vec<Bug>> = parking_lot::Mutex::new(Vec::new());

/// Whether this bug is planted on this thread.
#[cfg(debug_assertions)]
pub(crate) fn is_planted(bug: Bug) -> bool {
    let is_planted = PLANTED.get() == Some(bug);
    if is_planted {
        let mut reached = REACHED.lock();
        if !reached.contains(&bug) {
            reached.push(bug);
        }
    }
    is_planted
}

/// Never.
#[cfg(not(debug_assertions))]
pub(crate) const fn is_planted(_: Bug) -> bool {
    false
}

/// Plants a bug on this thread, or none any more; for tests.
#[cfg(debug_assertions)]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Returns the bug that is planted on this thread, so that a test can plant it on another one as well.
#[cfg(debug_assertions)]
pub fn planted_here() -> Option<Bug> {
    PLANTED.get()
}

/// Whether the place of a bug was reached while it was planted, since the last call.
#[cfg(debug_assertions)]
pub fn take_reached(bug: Bug) -> bool {
    let mut reached = REACHED.lock();
    let count = reached.len();
    reached.retain(|other| *other != bug);
    reached.len() < count
}
