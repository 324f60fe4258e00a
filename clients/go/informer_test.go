// SPDX-License-Identifier: Apache-2.0

package informerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	pb "informerd/clients/go/informerdv1"
)

func TestAHandlerThatFailsOrLagsDoesNotStopTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{LagThreshold: 2})
		release := make(chan struct{})
		f.recorder.before = func(note string) {
			if note == "+a=1 initial" {
				<-release
				panic("no a")
			}
		}
		stream := f.server.next()
		stream.send(initial("a", "u1", "1", "1"), endOfList("10"))
		registration := f.informer.cache.registrations()[0]
		for n := range 5 {
			stream.send(added(fmt.Sprint(11+n), fmt.Sprint("b", n), "u", "11", "1"))
		}
		f.expectState(StateLive, "15", "a=1", "b0=1", "b1=1", "b2=1", "b3=1", "b4=1")
		errs := f.takeErrors()
		var lag *LagError
		if len(errs) != 1 || !errors.As(errs[0], &lag) || lag.Waiting != 3 {
			t.Fatalf("%v", errs)
		}
		if registration.HasSynced() || !f.informer.HasSynced() {
			t.Fatal("the handler has synced before its call for a has ended")
		}
		close(release)
		f.expectNotes("+b0=1", "+b1=1", "+b2=1", "+b3=1", "+b4=1")
		if !registration.HasSynced() {
			t.Fatal("the handler has not synced")
		}
		errs = f.takeErrors()
		var failed *HandlerError
		if len(errs) != 1 || !errors.As(errs[0], &failed) || failed.Object != "a" || failed.Callback != "OnAdd" {
			t.Fatalf("%v", errs)
		}
	})
}

func TestAWaitThatTimesOutHasTheReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{})
		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
		defer cancel()
		f.server.next().end(failure(codes.Unavailable, "NOT_SYNCED", 50*time.Second).Err())
		err := f.informer.WaitForCacheSync(ctx)
		if !errors.Is(err, context.DeadlineExceeded) ||
			err.Error() != `"things" has not synced: context deadline exceeded; last error: scripted (UNAVAILABLE / NOT_SYNCED)` {
			t.Fatal(err)
		}
		f.server.next().send(endOfList("10"))
		err = f.informer.ReadAfter(ctx, "11")
		if !errors.Is(err, context.DeadlineExceeded) ||
			err.Error() != `the store is at version "10", not yet at "11": context deadline exceeded` {
			t.Fatal(err)
		}
	})
}

func TestALongInitialListIsNoLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{LagThreshold: 2})
		release := make(chan struct{})
		f.recorder.before = func(string) { <-release }
		stream := f.server.next()
		stream.send(initial("a", "u1", "1", "1"), initial("b", "u2", "1", "1"), initial("c", "u3", "1", "1"), endOfList("10"))
		stream.send(added("11", "d", "u4", "11", "1"), added("12", "e", "u5", "12", "1"))
		if errs := f.takeErrors(); len(errs) > 0 {
			t.Fatalf("%v", errs)
		}
		stream.send(added("13", "f", "u6", "13", "1"))
		if errs := f.takeErrors(); len(errs) != 1 {
			t.Fatalf("%v", errs)
		}
		close(release)
		f.expectState(StateLive, "13", "a=1", "b=1", "c=1", "d=1", "e=1", "f=1")
	})
}

func TestAHookThatBlocksOrPanicsDoesNotStopTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newScriptedServer(t)
		release, calls := make(chan struct{}), 0
		informer, err := NewInformer[json.RawMessage](server.client(ClientOptions{}), "things", InformerOptions{
			OnError: func(error) {
				calls++
				<-release
				if calls == 1 {
					panic("hook")
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		err = informer.AddIndexers(Indexers[json.RawMessage]{"none": func(*Object[json.RawMessage]) ([]string, error) {
			return nil, errors.New("no value")
		}})
		if err != nil {
			t.Fatal(err)
		}
		informer.Start()
		defer func() { informer.Stop(); <-informer.Done() }()
		stream := server.next()
		stream.send(initial("0", "u", "1", "1"), endOfList("10"))
		for n := range 99 {
			stream.send(added(fmt.Sprint(11+n), fmt.Sprint(1+n), "u", "1", "1"))
		}
		if !informer.Healthy() || informer.GetStore().Len() != 100 || calls != 1 {
			t.Fatal("the hook has stopped the informer")
		}
		close(release)
		synctest.Wait()
		if calls != 1+maxWaitingErrors+1 {
			t.Fatalf("%d calls of the hook", calls)
		}
	})
}

func TestAHandlerIsNotCalledBeforeItsPanicIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newScriptedServer(t)
		release, order := make(chan struct{}), ""
		informer, err := NewInformer[json.RawMessage](server.client(ClientOptions{}), "things", InformerOptions{
			OnError: func(err error) { <-release; order += "reported " },
		})
		if err != nil {
			t.Fatal(err)
		}
		informer.AddEventHandler(ResourceEventHandlerFuncs[json.RawMessage]{
			AddFunc: func(o *Object[json.RawMessage]) {
				order += o.Name + " "
				if o.Name == "a" {
					panic("no a")
				}
			},
		})
		informer.Start()
		defer func() { informer.Stop(); <-informer.Done() }()
		server.next().send(initial("a", "u", "1", "1"), endOfList("10"), added("11", "b", "u", "1", "1"))
		if informer.GetStore().Len() != 2 {
			t.Fatal("the hook has stopped the store")
		}
		close(release)
		synctest.Wait()
		if order != "a reported b " {
			t.Fatal(order)
		}
	})
}

func TestPermanentErrorsEndTheInformer(t *testing.T) {
	for _, code := range []codes.Code{
		codes.InvalidArgument, codes.PermissionDenied, codes.Unimplemented, codes.FailedPrecondition, codes.NotFound,
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, InformerOptions{})
			f.server.next().end(failure(code, "SCRIPTED", 0).Err())
			err := f.informer.WaitForCacheSync(t.Context())
			var failed *Error
			if !errors.As(err, &failed) || failed.Code != code || failed.Reason != "SCRIPTED" {
				t.Fatalf("%v", err)
			}
			<-f.informer.Done()
			if f.informer.Err() != err || f.informer.ReadAfter(t.Context(), "1") != err {
				t.Fatalf("%v", f.informer.Err())
			}
			f.expectState(StateDisconnected, "")
			f.server.none(time.Hour)
			if errs := f.takeErrors(); len(errs) != 1 || !errors.Is(errs[0], err) {
				t.Fatalf("%v", errs)
			}
		})
	}
}

func TestAHandlerGetsWhatWaitsWhenTheInformerGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{})
		release := make(chan struct{})
		f.recorder.before = func(string) { <-release }
		stream := f.server.next()
		stream.send(initial("a", "u1", "1", "1"), endOfList("10"), added("11", "b", "u2", "11", "1"))
		stream.end(failure(codes.PermissionDenied, "ACCESS_DENIED", 0).Err())
		run := make(chan error)
		go func() { run <- f.informer.Run(t.Context()) }()
		synctest.Wait()
		close(release)
		var failed *Error
		if err := <-run; !errors.As(err, &failed) || failed.Reason != "ACCESS_DENIED" {
			t.Fatalf("%v", err)
		}
		f.expectNotes("+a=1 initial", "+b=1")
		f.expectState(StateDisconnected, "11", "a=1", "b=1")
	})
}

func TestARunEndsWithItsContextAlsoWhileHandlersGetWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{})
		f.recorder.before = func(string) { time.Sleep(time.Minute) }
		stream := f.server.next()
		for n := range 100 {
			stream.send(initial(fmt.Sprint(n), "u", "1", "1"))
		}
		stream.send(endOfList("10"))
		stream.end(failure(codes.PermissionDenied, "ACCESS_DENIED", 0).Err())
		ctx, cancel := context.WithCancel(t.Context())
		run := make(chan error)
		go func() { run <- f.informer.Run(ctx) }()
		synctest.Wait()
		cancel()
		begin := time.Now()
		var failed *Error
		if err := <-run; !errors.As(err, &failed) || failed.Reason != "ACCESS_DENIED" {
			t.Fatalf("%v", err)
		}
		if took := time.Since(begin); took > time.Minute {
			t.Fatalf("it has ended after %v, and one call was in progress", took)
		}
	})
}

func TestARunReturnsAfterTheLastCall(t *testing.T) {
	for _, givesUp := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, InformerOptions{})
			f.recorder.before = func(string) { time.Sleep(time.Minute) }
			stream := f.server.next()
			stream.send(initial("a", "u1", "1", "1"), initial("b", "u2", "1", "1"), endOfList("10"))
			expected := time.Minute
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			begin := time.Now()
			if givesUp {
				// What waits is handled, too.
				expected = 2 * time.Minute
				stream.end(failure(codes.PermissionDenied, "ACCESS_DENIED", 0).Err())
			} else {
				cancel()
			}
			err := f.informer.Run(ctx)
			if took := time.Since(begin); took != expected || (err != nil) != givesUp {
				t.Fatalf("%v after %v", err, took)
			}
		})
	}
}

func TestReadAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{})
		read := func(version string) <-chan error {
			result := make(chan error, 1)
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				result <- f.informer.ReadAfter(ctx, version)
			}()
			synctest.Wait()
			return result
		}
		first := read("9")
		stream := f.synced()
		if err := <-first; err != nil {
			t.Fatal(err)
		}
		later, never := read("12"), read("1000")
		stream.send(added("10", "a", "u1", "12", "1"))
		if len(later) > 0 {
			t.Fatal("a part of a batch has been read")
		}
		stream.send(bookmark("12"))
		if err := <-later; err != nil {
			t.Fatal(err)
		}
		if err := <-never; !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		for _, version := range []string{"x.1", "", "abc"} {
			if err := <-read(version); err == nil {
				t.Fatalf("read after %q", version)
			}
		}
		waiting := read("1000")
		f.informer.Stop()
		if err := <-waiting; !errors.Is(err, ErrStopped) {
			t.Fatal(err)
		}
	})
}

func TestNoHandlerCallBeginsAfterStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{})
		began, release := make(chan struct{}), make(chan struct{})
		f.recorder.before = func(string) { began <- struct{}{}; <-release }
		f.server.next().send(initial("a", "u1", "1", "1"), initial("b", "u2", "2", "2"), endOfList("10"))
		<-began
		stopped := make(chan struct{})
		go func() { f.informer.Stop(); close(stopped) }()
		synctest.Wait()
		select {
		case <-stopped:
			t.Fatal("Stop has not waited for the call in progress")
		default:
		}
		release <- struct{}{}
		<-stopped
		<-f.informer.Done()
		f.informer.Stop()
		if len(f.recorder.take(false)) != 1 {
			t.Fatal("a second call")
		}
		f.server.none(time.Hour)
		if err := f.informer.Err(); err != ErrStopped {
			t.Fatal(err)
		}
		if f.informer.GetStore().Len() != 2 || f.informer.Healthy() {
			t.Fatal("the store remains, and is not healthy")
		}
	})
}

func TestStopInAHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{})
		f.recorder.before = func(string) { f.informer.Stop() }
		f.server.next().send(initial("a", "u1", "1", "1"), initial("b", "u2", "2", "2"), endOfList("10"))
		<-f.informer.Done()
		if notes := f.recorder.take(false); len(notes) != 1 {
			t.Fatalf("%q", notes)
		}
	})
}

func TestStopBeforeStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newScriptedServer(t)
		informer, err := NewInformer[json.RawMessage](server.client(ClientOptions{}), "things", InformerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		informer.Stop()
		informer.Start()
		if err := informer.WaitForCacheSync(t.Context()); err != ErrStopped {
			t.Fatal(err)
		}
		if err := informer.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		server.none(time.Hour)
	})
}

func TestRunEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- f.informer.Run(ctx) }()
		f.synced()
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	})
}

func TestAHandlerThatIsAddedLaterGetsTheStoreFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{})
		stream := f.synced(initial("a", "u1", "1", "1"))
		late := &recorder{}
		registration := f.informer.AddEventHandler(late)
		stream.send(modified("11", "a", "u1", "11", "2"))
		if notes := late.take(false); !slices.Equal(notes, []string{"+a=1 initial", "a:1>2"}) || !registration.HasSynced() {
			t.Fatalf("%q", notes)
		}
		f.informer.RemoveEventHandler(registration)
		stream.send(modified("12", "a", "u1", "12", "3"))
		if notes := late.take(false); len(notes) > 0 {
			t.Fatalf("%q", notes)
		}
		f.expectNotes("a:1>2", "a:2>3")
		if err := f.informer.AddIndexers(Indexers[json.RawMessage]{"body": func(o *Object[json.RawMessage]) ([]string, error) {
			return []string{string(o.Body)}, nil
		}}); err != nil {
			t.Fatal(err)
		}
		if objects, err := f.informer.GetIndexer().ByIndex("body", "3"); err != nil || len(objects) != 1 {
			t.Fatalf("%v %v", objects, err)
		}
		if values := f.informer.GetIndexer().ListIndexFuncValues("body"); !slices.Equal(values, []string{"3"}) {
			t.Fatalf("%q", values)
		}
		if _, err := f.informer.GetIndexer().ByIndex("nodes", "3"); err == nil {
			t.Fatal("an index that does not exist")
		}
		if f.informer.AddIndexers(Indexers[json.RawMessage]{"app": f.informer.cache.indexes["app"].values}) == nil {
			t.Fatal("two indexes of one name")
		}
	})
}

func TestAnIndexFunctionThatFailsIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{})
		err := f.informer.AddIndexers(Indexers[json.RawMessage]{
			"error": func(*Object[json.RawMessage]) ([]string, error) { return []string{"x"}, errors.New("no value") },
			"panic": func(*Object[json.RawMessage]) ([]string, error) { panic("no value") },
		})
		if err != nil {
			t.Fatal(err)
		}
		f.synced(initial("a", "u1", "1", "1"))
		f.expectState(StateLive, "10", "a=1")
		if errs := f.takeErrors(); len(errs) != 2 {
			t.Fatalf("%v", errs)
		}
	})
}

func TestInvalidOptionsAreRefused(t *testing.T) {
	client, err := NewClient("127.0.0.1:1", ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, options := range []InformerOptions{
		{BookmarkInterval: time.Millisecond},
		{DrainJitter: -1},
		{Policy: 5},
		{Selection: Selection{Index: &IndexMatch{Name: "x"}}},
		{MetadataOnly: true, View: &View{}},
	} {
		if _, err := NewInformer[any](client, "things", options); err == nil {
			t.Fatalf("%+v is accepted", options)
		}
	}
	if _, err := NewInformer[any](client, "", InformerOptions{}); err == nil {
		t.Fatal("a resource without a name is accepted")
	}
}

func TestTheSelectionIsSentAndCapabilitiesAreRequired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		options := InformerOptions{
			Selection: Selection{
				Namespace: "n", Name: "a", LabelSelector: "l", FieldSelector: "f", Expression: "e",
				Index: &IndexMatch{"i", []string{"v"}}, Shard: ShardOf("uid", 1, 2),
			},
			View: &View{Fields: []string{"x"}, OnlyIfChanged: true},
		}
		f := &fixture{t: t, server: newScriptedServer(t)}
		var capabilities []string
		f.server.unary = func(context.Context, any) (any, error) {
			return &pb.ListResourcesResponse{Server: &pb.ServerInfo{Capabilities: capabilities}}, nil
		}
		informer, err := NewInformer[json.RawMessage](f.server.client(ClientOptions{}), "things", options)
		if err != nil {
			t.Fatal(err)
		}
		if err := informer.Run(t.Context()); err == nil {
			t.Fatal("a server without shards would send everything")
		}
		capabilities = []string{"shards", "views"}
		informer, err = NewInformer[json.RawMessage](f.server.client(ClientOptions{}), "things", options)
		if err != nil {
			t.Fatal(err)
		}
		informer.Start()
		defer informer.Stop()
		r := f.server.next().request
		is := fmt.Sprint(r.Namespace, r.Name, r.LabelSelector, r.FieldSelector, r.Expression, r.Index.Name, r.Index.Values,
			r.Shard.Key, r.Shard.Ranges[0].Start, r.Shard.Ranges[0].End, r.View.Fields, r.View.OnlyIfChanged)
		if expected := "nalfei[v]uid9223372036854775808 0 [x] true"; is != expected {
			t.Fatalf("%s, expected %s", is, expected)
		}
	})
}

func TestWithoutBodiesVersionsAreCompared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{MetadataOnly: true})
		bare := func(message *pb.WatchResponse) *pb.WatchResponse {
			message.Object.Body = nil
			return message
		}
		stream := f.synced(bare(initial("a", "u1", "1", "")))
		if stream.request.Format != pb.PayloadFormat_PAYLOAD_FORMAT_METADATA {
			t.Fatalf("%v", stream.request)
		}
		stream.send(bare(modified("11", "a", "u1", "11", "")), bare(modified("12", "a", "u1", "11", "")))
		f.expectNotes("a:>")
		// After a loss of rights it is the key and no more.
		last := f.informer.cache.get(objectKey{name: "a"})
		var deletion *Object[json.RawMessage]
		f.informer.AddEventHandler(ResourceEventHandlerFuncs[json.RawMessage]{
			DeleteFunc: func(o *Object[json.RawMessage], _ Cause) { deletion = o },
		})
		gone := bare(deleted("13", "a", "u1", "13", ""))
		gone.Object.Labels = nil
		stream.send(gone)
		f.expectNotes("-a= DELETED")
		if deletion != last {
			t.Fatalf("%+v, expected the last known state", deletion)
		}
		// Also from a source without uids.
		stream.send(bare(added("14", "b", "", "14", "")))
		f.expectNotes("+b=")
		last = f.informer.cache.get(objectKey{name: "b"})
		gone = bare(deleted("15", "b", "", "15", ""))
		gone.Object.Labels = nil
		stream.send(gone)
		f.expectNotes("-b= DELETED")
		if deletion != last {
			t.Fatalf("%+v, expected the last known state", deletion)
		}
	})
}

func TestTheVersionsOfAnObjectThatAViewLeavesWithoutABodyAreCompared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, InformerOptions{View: &View{Fields: []string{"spec"}}})
		bare := initial("a", "u1", "1", "")
		bare.Object.Body = nil
		stream := f.synced(bare, initial("b", "u2", "1", "1"))
		changed := modified("11", "a", "u1", "11", "")
		changed.Object.Body = nil
		stream.send(changed, modified("12", "b", "u2", "12", "1"))
		f.expectNotes("a:>")
	})
}
