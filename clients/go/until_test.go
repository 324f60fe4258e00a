// SPDX-License-Identifier: Apache-2.0

package informerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	pb "informerd/clients/go/informerdv1"
)

// wait is an Until of a scripted server.
type wait struct {
	server *scriptedServer
	// seen has each event that the condition in turn was tested on.
	seen  []string
	met   *UntilEvent[int]
	err   error
	ended chan struct{}
}

// until begins a wait for events that are written as those of seen, one after the other.
func until(t *testing.T, ctx context.Context, events ...string) *wait {
	t.Helper()
	w := &wait{server: newScriptedServer(t), ended: make(chan struct{})}
	var conditions []Condition[int]
	for _, event := range events {
		conditions = append(conditions, func(e *UntilEvent[int]) (bool, error) {
			seen := fmt.Sprintf("%s %d", e.Type, e.Count)
			if e.Object != nil {
				seen = fmt.Sprintf("%s %s=%d %d", e.Type, e.Object.Key(), e.Object.Body, e.Count)
			}
			if e.Cause != CauseDeleted {
				seen += " " + e.Cause.String()
			}
			w.seen = append(w.seen, seen)
			return strings.HasPrefix(seen, event), nil
		})
	}
	things := NewResource[int](w.server.client(ClientOptions{}), "things")
	go func() {
		defer close(w.ended)
		w.met, w.err = things.Until(ctx, UntilOptions{Selection: Selection{Expression: "object > 0"}}, conditions...)
	}()
	return w
}

func (w *wait) expect(t *testing.T, version string, seen ...string) {
	t.Helper()
	<-w.ended
	if w.err != nil || w.met.ResourceVersion != version || fmt.Sprint(w.seen) != fmt.Sprint(seen) {
		t.Fatalf("%+v %v, tested %q", w.met, w.err, w.seen)
	}
}

func TestUntilGoesOnWhereAStreamEnds(t *testing.T) {
	for name, end := range map[string]error{
		"timeout of a proxy": failure(codes.Unavailable, "", 0).Err(),
		"restart":            failure(codes.Unavailable, "DRAINING", 0).Err(),
		"OK":                 nil,
	} {
		synctest.Test(t, func(t *testing.T) {
			w := until(t, t.Context(), "ADDED a=1", "DELETED a")
			stream := w.server.next()
			if stream.request.Expression != "object > 0" {
				t.Errorf("%s: %v", name, stream.request)
			}
			stream.send(initial("a", "u1", "1", "1"), endOfList("10"))
			stream.end(end)
			// The first condition stays met, and what happened between the streams is an event.
			stream = w.server.next()
			expectResume(t, stream, "10", "h10")
			stream.send(modified("11", "a", "u1", "11", "2"), deleted("12", "a", "u1", "12", "2"))
			w.expect(t, "12", "ADDED a=1 1", "ADDED a=1 1", "SYNCED 1", "MODIFIED a=2 1", "DELETED a=2 0")
			if !stream.isCancelled() {
				t.Error("the watch goes on")
			}
		})
	}
}

func TestUntilGoesOnAfterAnExpiredVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := until(t, t.Context(), "MODIFIED b=3", "DELETED a")
		stream := w.server.next()
		stream.send(initial("a", "u1", "1", "1"), initial("b", "u2", "2", "2"), endOfList("10"))
		stream.end(failure(codes.OutOfRange, "RESOURCE_VERSION_EXPIRED", 0).Err())
		stream = w.server.next()
		expectList(t, stream)
		stream.send(initial("b", "u2", "2", "3"), endOfList("x.1"))
		// The list lacks a: its deletion is an event, here before the condition for it has its turn.
		stream.send(added("x.2", "a", "u3", "x.2", "4"), deleted("x.3", "a", "u3", "x.3", "4"))
		<-w.ended
		if w.err != nil || w.met.ResourceVersion != "x.3" || w.met.Count != 1 {
			t.Fatalf("%+v %v, tested %q", w.met, w.err, w.seen)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := until(t, t.Context(), "DELETED a=1 0 INFERRED")
		stream := w.server.next()
		stream.send(initial("a", "u1", "1", "1"), endOfList("10"))
		stream.end(failure(codes.OutOfRange, "RESOURCE_VERSION_EXPIRED", 0).Err())
		w.server.next().send(endOfList("x.1"))
		w.expect(t, "x.1", "ADDED a=1 1", "SYNCED 1", "DELETED a=1 0 INFERRED")
	})
}

func TestUntilEndsWithItsContextAlsoWhileEventsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newScriptedServer(t)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		tested, ended := 0, make(chan error, 1)
		slow := func(event *UntilEvent[int]) (bool, error) {
			time.Sleep(10 * time.Second)
			tested++
			return false, nil
		}
		begin := time.Now()
		go func() {
			_, err := NewResource[int](server.client(ClientOptions{}), "things").Until(ctx, UntilOptions{}, slow)
			ended <- err
		}()
		stream := server.next()
		stream.send(endOfList("10"))
		for n := range 50 {
			version := fmt.Sprint(11 + n)
			stream.send(added(version, version, "u", version, "1"))
		}
		err := <-ended
		if took := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) || took > time.Minute {
			t.Fatalf("%v after %v and %d tests", err, took, tested)
		}
	})
}

func TestUntilCountsWhatCanNoLongerBeServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		notServed := deleted("12", "a", "u1", "12", "1")
		notServed.Cause = pb.Cause_CAUSE_NOT_SERVED
		left := deleted("14", "b", "u2", "14", "2")
		left.Cause = pb.Cause_CAUSE_LEFT_SELECTION
		w := until(t, t.Context(), "DELETED")
		w.server.next().send(endOfList("10"), added("11", "a", "u1", "11", "1"), notServed, added("13", "b", "u2", "13", "2"),
			added("13", "a", "u1", "13", "3"), left)
		w.expect(t, "14", "SYNCED 0", "ADDED a=1 1", "ADDED b=2 2", "ADDED a=3 2", "DELETED b=2 1 LEFT_SELECTION")
	})
}

func TestUntilEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failed *Error
		w := until(t, t.Context(), "never")
		w.server.next().end(failure(codes.InvalidArgument, "EXPRESSION_INVALID", 0).Err())
		if <-w.ended; !errors.As(w.err, &failed) || failed.Reason != "EXPRESSION_INVALID" {
			t.Errorf("%v", w.err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		w = until(t, ctx, "never")
		w.server.refuse(true)
		if <-w.ended; !errors.Is(w.err, context.DeadlineExceeded) {
			t.Errorf("%v", w.err)
		}
	})
	for _, test := range []struct {
		conditions []Condition[int]
		err        error
	}{{}, {[]Condition[int]{func(*UntilEvent[int]) (bool, error) { return true, errBroken }}, errBroken}} {
		synctest.Test(t, func(t *testing.T) {
			server := newScriptedServer(t)
			things := NewResource[int](server.client(ClientOptions{}), "things")
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				met, err := things.Until(t.Context(), UntilOptions{}, test.conditions...)
				if err != test.err || err == nil && met.Object.Body != 1 {
					t.Errorf("%+v %v", met, err)
				}
			}()
			server.next().send(endOfList("10"), added("11", "a", "u1", "11", "1"))
			<-ended
		})
	}
}

var errBroken = errors.New("broken")

func hasNumber(n int) Condition[realThing] {
	return func(e *UntilEvent[realThing]) (bool, error) { return e.Object != nil && e.Object.Body.N == n, nil }
}

func isDeleted(e *UntilEvent[realThing]) (bool, error) { return e.Type == "DELETED", nil }

func TestUntilOnARealServerThatIsRestarted(t *testing.T) {
	s := newRealServer(t, false)
	things := NewResource[realThing](s.client(), "things")
	met := make(chan struct{})
	noting := func(condition Condition[realThing]) Condition[realThing] {
		return func(e *UntilEvent[realThing]) (bool, error) {
			isMet, err := condition(e)
			if isMet {
				met <- struct{}{}
			}
			return isMet, err
		}
	}
	ended := make(chan error, 1)
	go func() {
		options := UntilOptions{Selection: Selection{Name: "a"}}
		_, err := things.Until(t.Context(), options, noting(hasNumber(1)), noting(hasNumber(2)), noting(hasNumber(3)), isDeleted)
		ended <- err
	}()
	<-met
	// The new server has another lineage: the version of the wait has expired.
	for n, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		s.stop(signal)
		s.write("a", 2+n)
		s.start()
		<-met
	}
	s.stop(syscall.SIGKILL)
	s.remove("a")
	s.start()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

func TestUntilBehindAProxyThatEndsIdleConnections(t *testing.T) {
	s := newRealServer(t, false)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	var connections atomic.Int32
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			go cutWhenIdle(client, s.socket)
		}
	}()
	client, err := NewClient(listener.Addr().String(), ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	ended := make(chan error, 1)
	go func() {
		_, err := NewResource[realThing](client, "things").Until(t.Context(), UntilOptions{}, hasNumber(1), hasNumber(2), isDeleted)
		ended <- err
	}()
	s.eventually("idle connections", func() bool { return connections.Load() > 3 })
	s.write("a", 2)
	now := connections.Load()
	s.eventually("idle connections", func() bool { return connections.Load() > now+2 })
	s.remove("a")
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// cutWhenIdle forwards a connection to a socket until nothing has come from there for a while.
func cutWhenIdle(client net.Conn, socket string) {
	server, err := net.Dial("unix", socket)
	if err != nil {
		client.Close()
		return
	}
	go func() {
		// It ends with the connection.
		_, _ = io.Copy(server, client)
	}()
	buffer := make([]byte, 1<<16)
	for err == nil {
		if err = server.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			break
		}
		var n int
		if n, err = server.Read(buffer); err == nil {
			_, err = client.Write(buffer[:n])
		}
	}
	client.Close()
	server.Close()
}
