// SPDX-License-Identifier: Apache-2.0

package informerd

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	pb "informerd/clients/go/informerdv1"
)

func TestTheFirstListIsAppliedAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{})
		stream := f.server.next()
		expectList(t, stream)
		f.expectState(StateSyncing, "")
		stream.send(initial("a", "u1", "1", "1"), initial("b", "u2", "2", "2"))
		f.expectState(StateSyncing, "")
		if f.informer.HasSynced() {
			t.Fatal("synced before the end of the list")
		}
		stream.send(endOfList("10"))
		f.expectState(StateLive, "10", "a=1", "b=2")
		f.expectDifference("+a=1 initial", "+b=2 initial")
		if err := f.informer.WaitForCacheSync(t.Context()); err != nil {
			t.Fatal(err)
		}
		stream.send(modified("11", "a", "u1", "11", "3"), deleted("12", "b", "u2", "12", "2"))
		f.expectNotes("a:1>3", "-b=2 DELETED")
		f.expectState(StateLive, "12", "a=3")
		keys, err := f.informer.GetIndexer().IndexKeys("app", "web")
		if err != nil || len(keys) != 1 || keys[0] != "a" {
			t.Fatalf("%q %v", keys, err)
		}
	})
}

func TestABatchOfInitialEventsIsItsEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{})
		stream := f.server.next()
		expectList(t, stream)
		a, b, c, d := initial("a", "u1", "1", "1"), initial("b", "u2", "2", "2"), initial("c", "u3", "3", "3"), initial("d", "u4", "4", "4")
		stream.send(batch(a, b), c, batch(d))
		f.expectState(StateSyncing, "")
		stream.send(endOfList("10"))
		f.expectState(StateLive, "10", "a=1", "b=2", "c=3", "d=4")
		f.expectDifference("+a=1 initial", "+b=2 initial", "+c=3 initial", "+d=4 initial")

		// A list that breaks off leaves nothing of its batches; without objects there are none.
		stream.end(failure(codes.OutOfRange, "RESOURCE_VERSION_EXPIRED", 0).Err())
		again := f.server.next()
		expectList(t, again)
		again.send(batch(initial("x", "u9", "9", "9"), b))
		again.end(failure(codes.Unavailable, "DRAINING", 0).Err())
		last := f.server.next()
		expectList(t, last)
		last.send(endOfList("11"))
		f.expectState(StateLive, "11")
		f.expectDifference("-a=1 INFERRED", "-b=2 INFERRED", "-c=3 INFERRED", "-d=4 INFERRED")
	})
}

func TestThreeSilentIntervalsAreADeadConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{})
		stream := f.synced(initial("a", "u1", "1", "1"))
		time.Sleep(3*interval - time.Millisecond)
		f.expectState(StateLive, "10", "a=1")
		time.Sleep(time.Millisecond)
		f.expectState(StateDisconnected, "10", "a=1")
		next := f.server.next()
		expectResume(t, next, "10", "h10")
		if next.connection == stream.connection || !stream.isCancelled() {
			t.Fatal("the dead connection is used further")
		}
		f.expectState(StateDisconnected, "10", "a=1")
		next.open()
		f.expectState(StateSyncing, "10", "a=1")
		next.send(modified("11", "a", "u1", "11", "2"))
		f.expectState(StateSyncing, "11", "a=2")
		next.send(bookmark("11"))
		f.expectState(StateLive, "11", "a=2")
		f.expectNotes("a:1>2")
		began := time.Now()
		expectResume(t, f.server.next(), "11", "h11")
		if took := time.Since(began); took > 3*interval+defaultMaxBackoff {
			t.Fatalf("reconnected after %v", took)
		}
	})
}

func TestAFirstMessageMayTakeLonger(t *testing.T) {
	for _, test := range []struct {
		isResumed bool
		timeout   time.Duration
	}{{false, 30 * time.Second}, {true, 100 * time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, InformerOptions{})
			if test.isResumed {
				f.synced().end(nil)
			}
			stream := f.server.next()
			began := time.Now()
			f.server.next()
			took := time.Since(began)
			if took < test.timeout || took > test.timeout+defaultMaxBackoff {
				t.Fatalf("reconnected after %v", took)
			}
			if !stream.isCancelled() {
				t.Fatal("the old stream is still open")
			}
		})
	}
}

func TestABatchIsAppliedWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{})
		stream := f.synced(initial("a", "u1", "1", "1"))
		// The version before the batch is that of the stream.
		stream.send(added("10", "b", "u2", "11", "1"), modified("10", "a", "u1", "11", "2"))
		f.expectState(StateLive, "10", "a=1")
		f.expectNotes()
		stream.send(bookmark("10"))
		f.expectState(StateLive, "10", "a=1")
		stream.send(added("11", "c", "u3", "11", "1"))
		f.expectState(StateLive, "11", "a=2", "b=1", "c=1")
		f.expectNotes("+b=1", "a:1>2", "+c=1")

		// The selection has missed versions: 20 is the version before the batch.
		stream.send(modified("20", "a", "u1", "21", "3"))
		f.expectState(StateLive, "20", "a=2", "b=1", "c=1")
		stream.send(modified("20", "b", "u2", "21", "3"))
		f.expectState(StateLive, "20", "a=2", "b=1", "c=1")
		// The rest of the batch has been suppressed, or belongs to other selections.
		stream.send(bookmark("21"))
		f.expectState(StateLive, "21", "a=3", "b=3", "c=1")
		f.expectNotes("a:2>3", "b:1>3")
	})
}

func TestABatchThatBreaksOffIsDiscardedAndRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{})
		stream := f.synced(initial("a", "u1", "1", "1"))
		stream.send(modified("10", "a", "u1", "11", "2"))
		stream.end(failure(codes.Unavailable, "X", 0).Err())
		next := f.server.next()
		expectResume(t, next, "10", "h10")
		if next.connection != stream.connection {
			t.Fatal("a status of the server is no reason to leave the connection")
		}
		next.send(modified("10", "a", "u1", "11", "2"), added("11", "b", "u2", "11", "1"), bookmark("11"))
		f.expectNotes("a:1>2", "+b=1")
		f.expectState(StateLive, "11", "a=2", "b=1")
	})
}

func TestABatchThatBreaksOffIsNotInTheNextList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{})
		stream := f.synced(initial("a", "u1", "1", "1"))
		stream.send(modified("10", "a", "u1", "11", "2"))
		stream.end(failure(codes.OutOfRange, "HISTORY_CHANGED", 0).Err())
		stream = f.server.next()
		stream.send(initial("a", "u1", "1", "1"), endOfList("5"), added("6", "b", "u2", "6", "1"))
		f.expectNotes("+b=1")
		f.expectState(StateLive, "6", "a=1", "b=1")
	})
}

func TestAnOpenEventIsAppliedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{})
		stream := f.synced()
		event := added("10", "a", "u1", "11", "1")
		event.Open = true
		stream.send(event)
		f.expectNotes("+a=1")
		f.expectState(StateLive, "10", "a=1")
		// The resume repeats it.
		stream.end(nil)
		next := f.server.next()
		expectResume(t, next, "10", "h10")
		next.send(event, bookmark("11"))
		f.expectNotes()
		// Behind events that are pending it is part of their batch.
		event = added("11", "c", "u3", "12", "1")
		event.Open = true
		next.send(added("11", "b", "u2", "12", "1"), event)
		f.expectNotes()
		next.send(bookmark("12"))
		f.expectNotes("+b=1", "+c=1")
	})
}

func TestUpsertsAndDeletionsAreIdempotent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{})
		stream := f.synced(initial("a", "u1", "1", "1"))
		stream.send(
			added("11", "a", "u1", "11", "1"),
			modified("12", "b", "u2", "12", "1"),
			deleted("13", "c", "u3", "13", "1"),
			// Another object has the key.
			deleted("14", "b", "u9", "14", "1"),
			modified("15", "b", "u3", "15", "2"),
		)
		f.expectNotes("+b=1", "-b=1 INFERRED", "+b=2")
		// Without a body it is the stored state.
		last := deleted("16", "b", "u3", "16", "")
		last.Object.Body, last.Cause = nil, pb.Cause_CAUSE_LEFT_SELECTION
		stream.send(last)
		f.expectNotes("-b=2 LEFT_SELECTION")
		labels := modified("17", "a", "u1", "17", "1")
		labels.Object.Labels = map[string]string{"app": "db"}
		stream.send(labels)
		f.expectNotes("a:1>1")
		if keys, _ := f.informer.GetIndexer().IndexKeys("app", "web"); len(keys) != 0 {
			t.Fatalf("the index has %q", keys)
		}
		object, _ := f.informer.GetStore().GetByKey("a")
		if object.ResourceVersion != "17" {
			t.Fatalf("%v", object)
		}
	})
}

func TestAfterAnotherListTheDifferenceIsDelivered(t *testing.T) {
	for _, reason := range []string{"RESOURCE_VERSION_EXPIRED", "HISTORY_CHANGED", "ACCESS_CHANGED"} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, InformerOptions{})
			stream := f.synced(
				initial("a", "u1", "1", "1"), initial("b", "u2", "2", "2"), initial("c", "u3", "3", "3"), initial("d", "u4", "4", "4"),
			)
			s := failure(codes.OutOfRange, reason, 0)
			stream.send(errorMessage("", s.Proto()))
			next := f.server.next()
			expectList(t, next)
			next.send(initial("e", "u5", "x.5", "5"))
			next.end(failure(codes.Unavailable, "X", 0).Err())
			next = f.server.next()
			expectList(t, next)
			// The lineage is another one, so every version is.
			next.send(initial("d", "u9", "x.4", "4"), initial("b", "u2", "x.2", "5"), initial("a", "u1", "x.1", "1"))
			f.expectNotes()
			f.expectState(StateSyncing, "10", "a=1", "b=2", "c=3", "d=4")
			next.send(endOfList("x.7"))
			f.expectDifference("+d=4", "-c=3 INFERRED", "-d=4 INFERRED", "b:2>5")
			f.expectState(StateLive, "x.7", "a=1", "b=5", "d=4")
			if a, _ := f.informer.GetStore().GetByKey("a"); a.ResourceVersion != "x.1" {
				t.Fatalf("%v", a)
			}
		})
	}
}

func TestTheSecondVersionTooLargeInARowListsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{})
		tooLarge := failure(codes.Unavailable, reasonVersionTooLarge, 0).Err()
		f.synced().end(tooLarge)
		next := f.server.next()
		expectResume(t, next, "10", "h10")
		next.send(bookmark("11"))
		next.end(tooLarge)
		next = f.server.next()
		expectResume(t, next, "11", "h11")
		next.end(tooLarge)
		expectList(t, f.server.next())
	})
}

func TestDroppedEventsAreFetched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{Policy: PolicyDrop, QueueLength: 7})
		stream := f.synced()
		if q := stream.request.Queue; q.Policy != pb.FullChannelPolicy_FULL_CHANNEL_POLICY_DROP || q.Length != 7 {
			t.Fatalf("%v", q)
		}
		stream.send(added("11", "a", "u1", "11", "1"), added("11", "b", "u2", "12", "1"))
		stream.send(&pb.WatchResponse{
			Type: pb.EventType_EVENT_TYPE_DROPPED, ResourceVersion: "15",
			Dropped: &pb.Dropped{Count: 3, AfterResourceVersion: "11"},
		})
		f.expectState(StateSyncing, "11", "a=1")
		next := f.server.next()
		expectResume(t, next, "11", "h10")
		if next.connection != stream.connection || !stream.isCancelled() {
			t.Fatal("a hole is no reason to leave the connection, but the stream")
		}
		next.send(added("12", "b", "u2", "12", "1"), bookmark("15"))
		f.expectNotes("+a=1", "+b=1")
		f.expectState(StateLive, "15", "a=1", "b=1")
	})
}

func TestADrainingServerIsLeftForAnotherConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{})
		stream := f.synced()
		draining := bookmark("11")
		draining.Bookmark.Draining = true
		began := time.Now()
		stream.send(draining)
		f.expectState(StateLive, "11")
		next := f.server.next()
		expectResume(t, next, "11", "h11")
		if took := time.Since(began); next.connection == stream.connection || took > time.Second {
			t.Fatalf("connection %d after %v", next.connection, took)
		}
		next.send(bookmark("11"))
		next.send(errorMessage("12", failure(codes.Unavailable, reasonDraining, 0).Proto()))
		last := f.server.next()
		expectResume(t, last, "12", "h11")
		if last.connection == next.connection {
			t.Fatal("the connection to the draining server is used further")
		}
		if errs := f.takeErrors(); len(errs) > 0 {
			t.Fatalf("draining is no error: %v", errs)
		}
	})
}

func TestStaleIsAState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{})
		stream := f.synced(initial("a", "u1", "1", "1"))
		stale := bookmark("10")
		stale.Bookmark.Source = pb.SyncState_SYNC_STATE_STALE
		stream.send(stale)
		f.expectState(StateStale, "10", "a=1")
		if seen := f.informer.Freshness().SourceSeenAt; !seen.Equal(stale.Bookmark.SourceSeenAt.AsTime()) {
			t.Fatal(seen)
		}
		stream.send(bookmark("11"))
		f.expectState(StateLive, "11", "a=1")
	})
}

func TestOtherNamespacesCompleteWhatIsPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{})
		stream := f.synced(initial("a", "u1", "1", "1"))
		left := deleted("10", "a", "u1", "1", "")
		left.Object.Body, left.Cause = nil, pb.Cause_CAUSE_LEFT_SELECTION
		stream.send(left)
		f.expectNotes()
		namespaces := bookmark("10")
		namespaces.Bookmark.Namespaces = []string{"n1"}
		stream.send(namespaces)
		f.expectNotes("-a=1 LEFT_SELECTION")
	})
}

func TestAResourceThatWasServedBeforeIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{})
		f.synced().end(failure(codes.NotFound, "RESOURCE_NOT_FOUND", 0).Err())
		expectResume(t, f.server.next(), "10", "h10")
	})
}

func TestRejectedCredentialsAreReadAgainOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "token")
		write := func(token string) {
			if err := os.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("one")
		f := newFixtureOf(t, InformerOptions{}, ClientOptions{TokenFile: path})
		rejected := failure(codes.Unauthenticated, "CREDENTIALS_EXPIRED", 0)
		stream := f.server.next()
		for _, token := range []string{"two", "three"} {
			write(token)
			stream.send(errorMessage("", rejected.Proto()))
			next := f.server.next()
			if next.token != "Bearer "+token || next.connection == stream.connection {
				t.Fatalf("token %q, connection %d", next.token, next.connection)
			}
			next.send(endOfList("10"))
			next.end(nil)
			stream = f.server.next()
		}
		stream.end(rejected.Err())
		f.server.next().end(rejected.Err())
		<-f.informer.Done()
		var failed *Error
		if !errors.As(f.informer.Err(), &failed) || failed.Code != codes.Unauthenticated {
			t.Fatal(f.informer.Err())
		}
		f.takeErrors()
	})
}

func TestATokenThatCannotBeReadNowIsReadLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(path, []byte("one"), 0o600); err != nil {
			t.Fatal(err)
		}
		f := newFixtureOf(t, InformerOptions{}, ClientOptions{TokenFile: path})
		stream := f.server.next()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		stream.end(nil)
		f.server.none(time.Minute)
		if err := os.WriteFile(path, []byte("two"), 0o600); err != nil {
			t.Fatal(err)
		}
		if stream := f.server.next(); stream.token != "Bearer two" {
			t.Fatal(stream.token)
		}
	})
}

func TestViolationsOfTheContractListAgain(t *testing.T) {
	for name, message := range map[string]*pb.WatchResponse{
		"unknown type": {Type: 99, ResourceVersion: "11"},
		"no object":    {Type: pb.EventType_EVENT_TYPE_ADDED, ResourceVersion: "11"},
		"no name":      added("11", "", "u1", "11", "1"),
		"no version":   added("", "a", "u1", "11", "1"),
		"late batch":   batch(initial("a", "u1", "11", "1")),
		"no status":    {Type: pb.EventType_EVENT_TYPE_ERROR, ResourceVersion: "11"},
		"unknown hole": {Type: pb.EventType_EVENT_TYPE_DROPPED, ResourceVersion: "11"},
		"format of Struct": {
			Type: pb.EventType_EVENT_TYPE_ADDED, ResourceVersion: "11", Object: &pb.Object{Name: "a", Body: &pb.Object_Struct{}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, InformerOptions{})
				stream := f.synced(initial("z", "u1", "1", "1"))
				stream.send(message)
				next := f.server.next()
				expectList(t, next)
				if next.connection == stream.connection {
					t.Fatal("the same connection")
				}
				if errs := f.takeErrors(); len(errs) != 1 {
					t.Fatalf("%v", errs)
				}
				f.expectState(StateDisconnected, "10", "z=1")
			})
		})
	}
}

func TestOnlyAdditionsAreInitialEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{})
		f.server.next().send(deleted("", "a", "u1", "1", "1"))
		deletions := batch(deleted("", "a", "u1", "1", "1"))
		deletions.Type = pb.EventType_EVENT_TYPE_DELETED
		next := f.server.next()
		expectList(t, next)
		next.send(deletions)
		expectList(t, f.server.next())
	})
}

func TestDelaysGrowAndAreReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{Backoff: time.Second, MaxBackoff: 4 * time.Second})
		refused := failure(codes.Unavailable, "X", 0).Err()
		var longest time.Duration
		stream := f.server.next()
		for range 80 {
			began := time.Now()
			stream.end(refused)
			stream = f.server.next()
			longest = max(longest, time.Since(began))
		}
		// With a chance of 1 in 10^9, all of the random delays up to 4 s are below 3 s.
		if longest < 3*time.Second || longest > 4*time.Second {
			t.Fatalf("longest delay %v", longest)
		}
		stream.send(endOfList("10"))
		began := time.Now()
		stream.end(nil)
		f.server.next()
		if took := time.Since(began); took > time.Second {
			t.Fatalf("delay %v after progress", took)
		}
	})
}

func TestTheServerMayRequestADelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{})
		for requested, expected := range map[time.Duration]time.Duration{7 * time.Second: 7 * time.Second, time.Hour: time.Minute} {
			stream := f.server.next()
			began := time.Now()
			stream.end(failure(codes.ResourceExhausted, "QUOTA_EXCEEDED", requested).Err())
			next := f.server.next()
			if took := time.Since(began); took < expected || took > expected+2*defaultBackoff {
				t.Fatalf("waited %v", took)
			}
			next.send(endOfList("10"))
			next.end(nil)
		}
	})
}

func TestAServerThatIsAwayIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{})
		stream := f.synced(initial("a", "u1", "1", "1"))
		f.server.refuse(true)
		stream.end(failure(codes.Unavailable, "", 0).Err())
		time.Sleep(5 * time.Minute)
		f.expectState(StateDisconnected, "10", "a=1")
		f.server.refuse(false)
		began := time.Now()
		expectResume(t, f.server.next(), "10", "h10")
		if took := time.Since(began); took > defaultMaxBackoff {
			t.Fatalf("found after %v", took)
		}
	})
}
