// SPDX-License-Identifier: Apache-2.0

package informerd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
)

// realServer is the program that the environment variable INFORMERD names, with things from JSON files or from a pipe.
type realServer struct {
	t         *testing.T
	directory string
	socket    string
	arguments []string
	stdin     io.WriteCloser
	log       bytes.Buffer
	command   *exec.Cmd
}

type realThing struct {
	Metadata struct {
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	N int `json:"n"`
}

func newRealServer(t *testing.T, isPiped bool) *realServer {
	program := os.Getenv("INFORMERD")
	if program == "" {
		t.Skip("INFORMERD does not name the server; clients/go/check requires it")
	}
	// The path of a socket is short, which that of t.TempDir may not be.
	directory, err := os.MkdirTemp("", "informerd")
	if err != nil {
		t.Fatal(err)
	}
	s := &realServer{t: t, directory: directory, socket: filepath.Join(directory, "s")}
	source := []string{"--files", "things=" + s.path("") + "@Thing"}
	if isPiped {
		source = []string{"--stream", "things=-"}
	}
	s.arguments = append(source, "--listen", "unix:"+s.socket, "--admin-listen", "none")
	s.write("a", 1)
	s.start()
	t.Cleanup(func() {
		s.signal(syscall.SIGCONT)
		s.signal(syscall.SIGKILL)
		// The error is that it was killed.
		_ = s.command.Wait()
		if t.Failed() {
			t.Logf("log of the server:\n%s", s.log.String())
		}
		if err := os.RemoveAll(directory); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *realServer) path(name string) string {
	path := filepath.Join(s.directory, "things")
	if err := os.MkdirAll(path, 0o700); err != nil {
		s.t.Fatal(err)
	}
	return filepath.Join(path, name)
}

func (s *realServer) start() {
	s.command = exec.Command(os.Getenv("INFORMERD"), append([]string{"serve"}, s.arguments...)...)
	s.command.Stderr = &s.log
	var err error
	if s.stdin, err = s.command.StdinPipe(); err != nil {
		s.t.Fatal(err)
	}
	if err := s.command.Start(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *realServer) signal(signal syscall.Signal) {
	if err := s.command.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.t.Error(err)
	}
}

// stop ends the server by a signal.
func (s *realServer) stop(signal syscall.Signal) {
	s.signal(signal)
	_ = s.command.Wait()
}

func (s *realServer) write(name string, n int) {
	s.t.Helper()
	text := fmt.Sprintf(`{"kind":"Thing","metadata":{"namespace":"ns","name":%q,"labels":{"app":"web"}},"n":%d}`, name, n)
	// A rename: the server never reads half of it.
	if err := os.WriteFile(s.path(name+".tmp"), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(s.path(name+".tmp"), s.path(name+".json")); err != nil {
		s.t.Fatal(err)
	}
}

func (s *realServer) remove(name string) {
	s.t.Helper()
	if err := os.Remove(s.path(name + ".json")); err != nil {
		s.t.Fatal(err)
	}
}

func (s *realServer) client() *Client {
	s.t.Helper()
	client, err := NewClient("unix:"+s.socket, ClientOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { client.Close() })
	return client
}

// informer returns a running informer that has synced; calls returns the handler calls since the last time.
func (s *realServer) informer(options InformerOptions) (informer *Informer[realThing], calls func() []string) {
	s.t.Helper()
	options.OnError = func(err error) { s.t.Log(err) }
	informer, err := NewInformer[realThing](s.client(), "things", options)
	if err != nil {
		s.t.Fatal(err)
	}
	var mu sync.Mutex
	var notes []string
	note := func(format string, arguments ...any) {
		mu.Lock()
		defer mu.Unlock()
		notes = append(notes, fmt.Sprintf(format, arguments...))
	}
	informer.AddEventHandler(ResourceEventHandlerFuncs[realThing]{
		AddFunc:    func(o *Object[realThing]) { note("+%s=%d", o.Name, o.Body.N) },
		UpdateFunc: func(old, o *Object[realThing]) { note("%s:%d>%d", o.Name, old.Body.N, o.Body.N) },
		DeleteFunc: func(o *Object[realThing], cause Cause) { note("-%s %v", o.Name, cause) },
	})
	informer.Start()
	s.t.Cleanup(func() { informer.Stop(); <-informer.Done() })
	if err := informer.WaitForCacheSync(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	return informer, func() []string {
		mu.Lock()
		defer mu.Unlock()
		taken := notes
		notes = nil
		return taken
	}
}

// until waits until the server has a thing with a number, or none for 0, and then until an informer has it.
func (s *realServer) until(informer *Informer[realThing], name string, n int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	things := NewResource[realThing](s.client(), "things")
	condition := hasNumber(n)
	if n == 0 {
		condition = func(e *UntilEvent[realThing]) (bool, error) { return e.Count == 0, nil }
	}
	met, err := things.Until(ctx, UntilOptions{Selection: Selection{Name: name}}, condition)
	if err != nil {
		s.t.Fatal(err)
	}
	version := met.ResourceVersion
	// After a restart the informer may still have versions of the last lineage.
	s.eventually("the informer to reach "+version, func() bool { return informer.ReadAfter(ctx, version) == nil })
	s.compare(informer)
}

// compare checks that an informer has what the server has, while nothing changes.
func (s *realServer) compare(informer *Informer[realThing]) {
	s.t.Helper()
	list, err := NewResource[realThing](s.client(), "things").List(s.t.Context(), ListOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	show := func(objects []*Object[realThing]) (shown []string) {
		for _, o := range objects {
			shown = append(shown, fmt.Sprintf("%s %s %s=%d", o.Key(), o.UID, o.ResourceVersion, o.Body.N))
		}
		slices.Sort(shown)
		return shown
	}
	if is, expected := show(informer.GetStore().List()), show(list.Objects); !slices.Equal(is, expected) {
		s.t.Fatalf("the store has %q, the server %q", is, expected)
	}
}

// eventually waits for a condition.
func (s *realServer) eventually(what string, condition func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("waited a minute for %s", what)
		}
	}
}

func (s *realServer) expectCalls(calls func() []string, expected ...string) {
	s.t.Helper()
	var is []string
	s.eventually(fmt.Sprintf("the handler calls %q", expected), func() bool {
		is = append(is, calls()...)
		return len(is) >= len(expected)
	})
	slices.Sort(is)
	if !slices.Equal(is, expected) {
		s.t.Fatalf("handler calls %q, expected %q", is, expected)
	}
}

func TestRealServerIsFollowedAcrossRestarts(t *testing.T) {
	s := newRealServer(t, false)
	informer, calls := s.informer(InformerOptions{BookmarkInterval: time.Second})
	s.expectCalls(calls, "+a=1")
	s.write("b", 2)
	s.until(informer, "b", 2)
	s.write("a", 3)
	s.until(informer, "a", 3)
	s.expectCalls(calls, "+b=2", "a:1>3")
	for n, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		s.stop(signal)
		s.eventually("the end to be noticed", func() bool { return !informer.Healthy() })
		s.write("b", 10+n)
		s.start()
		s.until(informer, "b", 10+n)
		s.eventually("health", informer.Healthy)
	}
	s.expectCalls(calls, "b:10>11", "b:2>10")
	s.remove("b")
	s.until(informer, "b", 0)
	s.expectCalls(calls, "-b DELETED")
}

func TestRealServerThatIsFrozenIsNoticed(t *testing.T) {
	s := newRealServer(t, false)
	informer, _ := s.informer(InformerOptions{BookmarkInterval: 100 * time.Millisecond, FirstMessageTimeout: 200 * time.Millisecond})
	for n := range 3 {
		s.eventually("LIVE", func() bool { return informer.Freshness().State == StateLive })
		s.signal(syscall.SIGSTOP)
		s.eventually("DISCONNECTED", func() bool { return informer.Freshness().State == StateDisconnected })
		s.write("a", 5+n)
		s.signal(syscall.SIGCONT)
		s.until(informer, "a", 5+n)
	}
}

func TestRealServerLosesNothingUnderAnyPolicy(t *testing.T) {
	const names, changes = 50, 4_000
	s := newRealServer(t, true)
	event := func(kind string, name, n int) string {
		return fmt.Sprintf(`{"type":%q,"object":{"kind":"Thing","metadata":{"namespace":"ns","name":"t%d"},"n":%d}}`+"\n", kind, name, n)
	}
	if _, err := io.WriteString(s.stdin, event("ADDED", 0, 1)+`{"type":"BOOKMARK","object":{"kind":"Thing","metadata":{"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"true"}}}}`+"\n"); err != nil {
		t.Fatal(err)
	}
	var informers []*Informer[realThing]
	for policy := PolicyDefault; policy <= PolicyCoalesce; policy++ {
		informer, _ := s.informer(InformerOptions{Policy: policy, QueueLength: 16, BookmarkInterval: time.Second})
		informers = append(informers, informer)
	}
	var text strings.Builder
	for n := range changes {
		kind := "MODIFIED"
		if n%7 == 3 {
			kind = "DELETED"
		}
		text.WriteString(event(kind, n%names, n))
	}
	text.WriteString(event("MODIFIED", names, changes))
	if _, err := io.WriteString(s.stdin, text.String()); err != nil {
		t.Fatal(err)
	}
	for _, informer := range informers {
		s.until(informer, fmt.Sprint("t", names), changes)
	}
}

func TestRealServerAnswersPlainCalls(t *testing.T) {
	s := newRealServer(t, false)
	s.write("b", 2)
	client, ctx := s.client(), t.Context()
	things := NewResource[realThing](client, "things")
	hasBoth := func(e *UntilEvent[realThing]) (bool, error) { return e.Count == 2, nil }
	if _, err := things.Until(ctx, UntilOptions{}, hasBoth); err != nil {
		t.Fatal(err)
	}
	list, err := things.List(ctx, ListOptions{Selection: Selection{LabelSelector: "app=web", Name: "b"}})
	if err != nil || len(list.Objects) != 1 || list.Objects[0].Body.N != 2 || list.Stale || list.SourceSeenAt.IsZero() {
		t.Fatalf("%+v %v", list, err)
	}
	list, err = things.ByIndex(ctx, "namespace", "ns", ListOptions{MinResourceVersion: list.ResourceVersion})
	if err != nil || len(list.Objects) != 2 {
		t.Fatalf("%+v %v", list, err)
	}
	got, err := things.Get(ctx, "ns", "a", GetOptions{View: &View{Fields: []string{"n"}}})
	if err != nil || got.Object.Body.N != 1 || got.Object.Body.Metadata.Namespace != "" || got.Object.Namespace != "ns" {
		t.Fatalf("%+v %v", got, err)
	}
	var failed *Error
	if _, err = things.Get(ctx, "ns", "c", GetOptions{}); !errors.As(err, &failed) || failed.Reason != "OBJECT_NOT_FOUND" {
		t.Fatalf("%v", err)
	}
	seen := 0
	for i := range 3 {
		part, err := NewResource[json.RawMessage](client, "things").List(ctx, ListOptions{
			Selection: Selection{Shard: ShardOf("key", i, 3)}, MetadataOnly: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		seen += len(part.Objects)
	}
	if seen != 2 {
		t.Fatalf("%d objects in all shards", seen)
	}
	resources, err := client.ListResources(ctx)
	if err != nil || len(resources.Resources) != 1 || resources.Resources[0].Name != "things" {
		t.Fatalf("%v %v", resources, err)
	}
	informer, err := NewInformer[realThing](client, "thing", InformerOptions{OnError: func(error) {}})
	if err != nil {
		t.Fatal(err)
	}
	if err := informer.Run(ctx); !errors.As(err, &failed) || failed.Code != codes.NotFound || failed.Reason != "RESOURCE_NOT_FOUND" {
		t.Fatalf("%v", err)
	}
}

func TestRealServerIsFollowedByTheProgramOfTheREADME(t *testing.T) {
	s := newRealServer(t, false)
	s.arguments[1] = strings.Replace(s.arguments[1], "things=", "pods=", 1)
	s.stop(syscall.SIGKILL)
	s.start()
	program := filepath.Join(s.directory, "example")
	if output, err := exec.Command("go", "build", "-o", program, "./example").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	command := exec.Command(program, "unix:"+s.socket)
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	}()
	lines := bufio.NewScanner(output)
	expect := func(expected string) {
		t.Helper()
		if !lines.Scan() || lines.Text() != expected {
			t.Fatalf("%q, expected %q", lines.Text(), expected)
		}
	}
	expect("+ ns/a ")
	s.write("a", 2)
	expect("~ ns/a ")
	s.remove("a")
	expect("- ns/a DELETED")
}
