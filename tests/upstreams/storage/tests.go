package main

import (
	"context"
	"testing"
	"time"

	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

// of makes a test of one that needs an interface of the fixture alone.
func of[S any](name string, run func(context.Context, *testing.T, S)) testing.InternalTest {
	return with(name, func(ctx context.Context, t *testing.T, f *fixture) { run(ctx, t, any(f).(S)) })
}

func with(name string, run func(context.Context, *testing.T, *fixture)) testing.InternalTest {
	return testing.InternalTest{Name: name, F: func(t *testing.T) {
		if !alone[name] {
			t.Parallel()
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		// The parallel parts of a test run after it.
		t.Cleanup(cancel)
		run(ctx, t, setup(t, false))
	}}
}

// limit is the time after which the calls of a test end, also those of its parallel parts, which wait for those of others.
const limit = 2 * time.Minute

// alone are the tests that run before those that run together: some set feature gates, which are those of the process, and Get reads an
// object that lasts for a second.
var alone = map[string]bool{
	"Get": true, "Stats": true, "WatchSemantics": true, "WatchSemanticInitialEventsExtended": true, "WatchListMatchSingle": true,
}

// What a write leaves in etcd is the matter of the writer, and so is what a read costs there.
func noKeys(context.Context, *testing.T, string) {}
func noCalls(*testing.T, uint64, uint64)         {}

// tests are all that the package has, in its order.
var tests = []testing.InternalTest{
	of("Create", func(ctx context.Context, t *testing.T, s storage.Interface) {
		storagetesting.RunTestCreate(ctx, t, s, noKeys)
	}),
	of("CreateWithTTL", storagetesting.RunTestCreateWithTTL),
	of("CreateWithKeyExist", storagetesting.RunTestCreateWithKeyExist),
	of("Get", storagetesting.RunTestGet),
	of("UnconditionalDelete", storagetesting.RunTestUnconditionalDelete),
	of("ConditionalDelete", storagetesting.RunTestConditionalDelete),
	of("DeleteWithSuggestion", storagetesting.RunTestDeleteWithSuggestion),
	of("DeleteWithSuggestionAndConflict", storagetesting.RunTestDeleteWithSuggestionAndConflict),
	of("DeleteWithConflict", storagetesting.RunTestDeleteWithConflict),
	of("DeleteWithSuggestionOfDeletedObject", storagetesting.RunTestDeleteWithSuggestionOfDeletedObject),
	of("ValidateDeletionWithSuggestion", storagetesting.RunTestValidateDeletionWithSuggestion),
	of("ValidateDeletionWithOnlySuggestionValid", storagetesting.RunTestValidateDeletionWithOnlySuggestionValid),
	of("PreconditionalDeleteWithSuggestion", storagetesting.RunTestPreconditionalDeleteWithSuggestion),
	of("PreconditionalDeleteWithOnlySuggestionPass", storagetesting.RunTestPreconditionalDeleteWithOnlySuggestionPass),
	with("List", func(ctx context.Context, t *testing.T, f *fixture) {
		storagetesting.RunTestList(ctx, t, f, f.compact, true, f.recorder)
	}),
	with("ConsistentList", func(ctx context.Context, t *testing.T, f *fixture) {
		storagetesting.RunTestConsistentList(ctx, t, f, f.increase, true, true, true)
	}),
	with("GetListNonRecursive", func(ctx context.Context, t *testing.T, f *fixture) {
		storagetesting.RunTestGetListNonRecursive(ctx, t, f.increase, f)
	}),
	of("GetListRecursivePrefix", storagetesting.RunTestGetListRecursivePrefix),
	of("ListContinuation", func(ctx context.Context, t *testing.T, s storage.Interface) {
		storagetesting.RunTestListContinuation(ctx, t, s, noCalls)
	}),
	of("ListPaginationRareObject", func(ctx context.Context, t *testing.T, s storage.Interface) {
		storagetesting.RunTestListPaginationRareObject(ctx, t, s, noCalls)
	}),
	of("ListContinuationWithFilter", func(ctx context.Context, t *testing.T, s storage.Interface) {
		storagetesting.RunTestListContinuationWithFilter(ctx, t, s, noCalls)
	}),
	with("ListInconsistentContinuation", func(ctx context.Context, t *testing.T, f *fixture) {
		storagetesting.RunTestListInconsistentContinuation(ctx, t, f, f.forget)
	}),
	of("ListResourceVersionMatch", storagetesting.RunTestListResourceVersionMatch),
	with("GuaranteedUpdate", func(ctx context.Context, t *testing.T, f *fixture) {
		storagetesting.RunTestGuaranteedUpdate(ctx, t, f, noKeys)
	}),
	of("GuaranteedUpdateWithTTL", storagetesting.RunTestGuaranteedUpdateWithTTL),
	of("GuaranteedUpdateChecksStoredData", storagetesting.RunTestGuaranteedUpdateChecksStoredData),
	of("GuaranteedUpdateWithConflict", storagetesting.RunTestGuaranteedUpdateWithConflict),
	of("GuaranteedUpdateWithSuggestionAndConflict", storagetesting.RunTestGuaranteedUpdateWithSuggestionAndConflict),
	of("TransformationFailure", storagetesting.RunTestTransformationFailure),
	with("Stats", func(ctx context.Context, t *testing.T, f *fixture) {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.SizeBasedListCostEstimate, false)
		storagetesting.RunTestStats(ctx, t, f, codecs.LegacyCodec(examplev1.SchemeGroupVersion), f.transformer, false)
	}),
	of("ListPaging", storagetesting.RunTestListPaging),
	of("NamespaceScopedList", storagetesting.RunTestNamespaceScopedList),
	with("CompactRevision", func(ctx context.Context, t *testing.T, f *fixture) {
		storagetesting.RunTestCompactRevision(ctx, t, f, f.increase, f.forget)
	}),
	of("KeySchema", storagetesting.RunTestKeySchema),

	of("Watch", storagetesting.RunTestWatch),
	with("WatchFromZero", func(ctx context.Context, t *testing.T, f *fixture) {
		storagetesting.RunTestWatchFromZero(ctx, t, f, f.forget)
	}),
	of("DeleteTriggerWatch", storagetesting.RunTestDeleteTriggerWatch),
	of("WatchFromNonZero", storagetesting.RunTestWatchFromNonZero),
	of("DelayedWatchDelivery", storagetesting.RunTestDelayedWatchDelivery),
	of("WatchError", storagetesting.RunTestWatchError),
	of("WatchWithUnsafeDelete", storagetesting.RunTestWatchWithUnsafeDelete),
	of("WatchContextCancel", storagetesting.RunTestWatchContextCancel),
	of("WatcherTimeout", storagetesting.RunTestWatcherTimeout),
	of("WatchDeleteEventObjectHaveLatestRV", storagetesting.RunTestWatchDeleteEventObjectHaveLatestRV),
	of("WatchInitializationSignal", storagetesting.RunTestWatchInitializationSignal),
	with("ProgressNotify", func(ctx context.Context, t *testing.T, f *fixture) {
		storagetesting.RunOptionalTestProgressNotify(ctx, t, f, f.increase)
	}),
	{Name: "ClusterScopedWatch", F: func(t *testing.T) {
		storagetesting.RunTestClusterScopedWatch(t.Context(), t, setup(t, true))
	}},
	of("NamespaceScopedWatch", storagetesting.RunTestNamespaceScopedWatch),
	of("WatchDispatchBookmarkEvents", func(ctx context.Context, t *testing.T, s storage.Interface) {
		storagetesting.RunTestWatchDispatchBookmarkEvents(ctx, t, s, true)
	}),
	of("WatchBookmarksWithCorrectResourceVersion", storagetesting.RunTestOptionalWatchBookmarksWithCorrectResourceVersion),
	of("SendInitialEventsBackwardCompatibility", storagetesting.RunSendInitialEventsBackwardCompatibility),
	of("WatchSemantics", storagetesting.RunWatchSemantics),
	of("WatchSemanticInitialEventsExtended", storagetesting.RunWatchSemanticInitialEventsExtended),
	of("WatchListMatchSingle", storagetesting.RunWatchListMatchSingle),
	with("WatchErrorIsBlockingFurtherEvents", func(ctx context.Context, t *testing.T, f *fixture) {
		// It waits until each watch has ended.
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		t.Cleanup(cancel)
		storagetesting.RunWatchErrorIsBlockingFurtherEvents(ctx, t, f)
	}),
}
