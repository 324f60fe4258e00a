// SPDX-License-Identifier: Apache-2.0

package informerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "informerd/clients/go/informerdv1"
)

// scriptedServer is a server in memory whose streams a test scripts. In a bubble of synctest, time passes only while everything
// waits for it.
type scriptedServer struct {
	pb.UnimplementedInformerServiceServer
	t        *testing.T
	grpc     *grpc.Server
	listener *bufconn.Listener
	streams  chan *scriptedStream
	// unary answers the plain calls.
	unary func(ctx context.Context, request any) (any, error)

	mu          sync.Mutex
	connections int
	refuses     bool
}

// scriptedStream is one Watch.
type scriptedStream struct {
	t          *testing.T
	request    *pb.WatchRequest
	connection int
	token      string
	steps      chan func(pb.InformerService_WatchServer) error
	ctx        context.Context
}

var errEnd = errors.New("end of the stream")

type connectionKey struct{}

// TagConn numbers the connections from 1.
func (s *scriptedServer) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connections++
	return context.WithValue(ctx, connectionKey{}, s.connections)
}
func (s *scriptedServer) HandleConn(context.Context, stats.ConnStats)                     {}
func (s *scriptedServer) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }
func (s *scriptedServer) HandleRPC(context.Context, stats.RPCStats)                       {}

func newScriptedServer(t *testing.T) *scriptedServer {
	s := &scriptedServer{t: t, listener: bufconn.Listen(1 << 20), streams: make(chan *scriptedStream)}
	s.unary = func(context.Context, any) (any, error) {
		return &pb.ListResourcesResponse{Server: &pb.ServerInfo{Capabilities: []string{"shards", "views"}}}, nil
	}
	s.grpc = grpc.NewServer(grpc.StatsHandler(s), grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
		MinTime: 10 * time.Second, PermitWithoutStream: true,
	}))
	pb.RegisterInformerServiceServer(s.grpc, s)
	go func() {
		if err := s.grpc.Serve(s.listener); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(s.grpc.Stop)
	return s
}

func (s *scriptedServer) refuse(refuses bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuses = refuses
}

func (s *scriptedServer) client(options ClientOptions) *Client {
	s.t.Helper()
	options.DialOptions = append(options.DialOptions, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		s.mu.Lock()
		refuses := s.refuses
		s.mu.Unlock()
		if refuses {
			return nil, errors.New("connection refused")
		}
		return s.listener.DialContext(ctx)
	}))
	client, err := NewClient("127.0.0.1:1", options)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { client.Close() })
	return client
}

func (s *scriptedServer) Watch(request *pb.WatchRequest, server pb.InformerService_WatchServer) error {
	ctx := server.Context()
	stream := &scriptedStream{
		t: s.t, request: request, ctx: ctx, connection: ctx.Value(connectionKey{}).(int),
		steps: make(chan func(pb.InformerService_WatchServer) error),
	}
	md, _ := metadata.FromIncomingContext(ctx)
	if tokens := md.Get("authorization"); len(tokens) == 1 {
		stream.token = tokens[0]
	}
	select {
	case s.streams <- stream:
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		select {
		case step := <-stream.steps:
			if err := step(server); errors.Is(err, errEnd) {
				return nil
			} else if err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// next returns the next Watch.
func (s *scriptedServer) next() *scriptedStream {
	s.t.Helper()
	select {
	case stream := <-s.streams:
		return stream
	case <-time.After(time.Hour):
		s.t.Fatal("no Watch in an hour")
		return nil
	}
}

// none checks that there is no Watch for a while.
func (s *scriptedServer) none(d time.Duration) {
	s.t.Helper()
	select {
	case stream := <-s.streams:
		s.t.Fatalf("Watch from %q", stream.request.ResourceVersion)
	case <-time.After(d):
	}
}

// send sends messages, and returns when everything waits again.
func (s *scriptedStream) send(messages ...*pb.WatchResponse) {
	s.t.Helper()
	s.do(func(server pb.InformerService_WatchServer) error {
		for _, message := range messages {
			if err := server.Send(message); err != nil {
				return err
			}
		}
		return nil
	})
}

// open sends the headers alone.
func (s *scriptedStream) open() {
	s.t.Helper()
	s.do(func(server pb.InformerService_WatchServer) error { return server.SendHeader(nil) })
}

// end ends the stream with a status; nil is OK.
func (s *scriptedStream) end(err error) {
	s.t.Helper()
	if err == nil {
		err = errEnd
	}
	s.do(func(pb.InformerService_WatchServer) error { return err })
}

func (s *scriptedStream) do(step func(pb.InformerService_WatchServer) error) {
	s.t.Helper()
	select {
	case s.steps <- step:
	case <-s.ctx.Done():
		s.t.Fatal("the client has cancelled the stream")
	}
	synctest.Wait()
}

// isCancelled returns true if the client has left the stream.
func (s *scriptedStream) isCancelled() bool {
	synctest.Wait()
	return s.ctx.Err() != nil
}

func (s *scriptedServer) ListResources(ctx context.Context, r *pb.ListResourcesRequest) (*pb.ListResourcesResponse, error) {
	response, err := s.unary(ctx, r)
	if err != nil {
		return nil, err
	}
	return response.(*pb.ListResourcesResponse), nil
}

func (s *scriptedServer) Get(ctx context.Context, r *pb.GetRequest) (*pb.GetResponse, error) {
	response, err := s.unary(ctx, r)
	if err != nil {
		return nil, err
	}
	return response.(*pb.GetResponse), nil
}

func (s *scriptedServer) List(r *pb.ListRequest, server pb.InformerService_ListServer) error {
	response, err := s.unary(server.Context(), r)
	if err != nil {
		return err
	}
	for _, chunk := range response.([]*pb.ListResponse) {
		if err := server.Send(chunk); err != nil {
			return err
		}
	}
	return nil
}

func (s *scriptedServer) ByIndex(r *pb.ByIndexRequest, server pb.InformerService_ByIndexServer) error {
	response, err := s.unary(server.Context(), r)
	if err != nil {
		return err
	}
	return server.Send(response.(*pb.ByIndexResponse))
}

// recorder is an event handler that notes its calls.
type recorder struct {
	mu    sync.Mutex
	notes []string
	// before is called before each note.
	before func(note string)
}

func (r *recorder) note(format string, args ...any) {
	note := fmt.Sprintf(format, args...)
	if r.before != nil {
		r.before(note)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes = append(r.notes, note)
}

func (r *recorder) OnAdd(o *Object[json.RawMessage], isInInitialList bool) {
	initial := ""
	if isInInitialList {
		initial = " initial"
	}
	r.note("+%s=%s%s", o.Key(), o.Body, initial)
}

func (r *recorder) OnUpdate(old, o *Object[json.RawMessage]) {
	r.note("%s:%s>%s", o.Key(), old.Body, o.Body)
}

func (r *recorder) OnDelete(o *Object[json.RawMessage], cause Cause) {
	r.note("-%s=%s %v", o.Key(), o.Body, cause)
}

// take returns the notes since the last call, sorted if their order is free.
func (r *recorder) take(isSorted bool) []string {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	notes := r.notes
	r.notes = nil
	if isSorted {
		slices.Sort(notes)
	}
	return notes
}

// fixture is an informer of a scripted server, with a recorder.
type fixture struct {
	t        *testing.T
	server   *scriptedServer
	informer *Informer[json.RawMessage]
	recorder *recorder

	mu     sync.Mutex
	errors []error
}

const interval = 10 * time.Second

func newFixture(t *testing.T, options InformerOptions) *fixture {
	t.Helper()
	return newFixtureOf(t, options, ClientOptions{})
}

func newFixtureOf(t *testing.T, options InformerOptions, clientOptions ClientOptions) *fixture {
	t.Helper()
	f := &fixture{t: t, server: newScriptedServer(t), recorder: &recorder{}}
	options.OnError = func(err error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.errors = append(f.errors, err)
	}
	var err error
	f.informer, err = NewInformer[json.RawMessage](f.server.client(clientOptions), "things", options)
	if err != nil {
		t.Fatal(err)
	}
	err = f.informer.AddIndexers(Indexers[json.RawMessage]{"app": func(o *Object[json.RawMessage]) ([]string, error) {
		if app := o.Labels["app"]; app != "" {
			return []string{app}, nil
		}
		return nil, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	f.informer.AddEventHandler(f.recorder)
	t.Cleanup(func() { f.informer.Stop(); <-f.informer.Done() })
	f.informer.Start()
	return f
}

// synced returns the first stream after its initial events: at version 10 with history "h10".
func (f *fixture) synced(initial ...*pb.WatchResponse) *scriptedStream {
	f.t.Helper()
	stream := f.server.next()
	stream.send(append(initial, endOfList("10"))...)
	f.recorder.take(false)
	return stream
}

func (f *fixture) expectNotes(expected ...string) {
	f.t.Helper()
	if notes := f.recorder.take(false); !slices.Equal(notes, expected) {
		f.t.Fatalf("handler calls %q, expected %q", notes, expected)
	}
}

// expectDifference is expectNotes where the order is free.
func (f *fixture) expectDifference(expected ...string) {
	f.t.Helper()
	if notes := f.recorder.take(true); !slices.Equal(notes, expected) {
		f.t.Fatalf("handler calls %q, expected %q", notes, expected)
	}
}

// expectState checks the state, the version, and the objects as "key=body".
func (f *fixture) expectState(state State, version string, objects ...string) {
	f.t.Helper()
	synctest.Wait()
	if is := f.informer.Freshness().State; is != state {
		f.t.Fatalf("state %v, expected %v", is, state)
	}
	isHealthy := state == StateLive || state == StateStale
	if f.informer.Healthy() != isHealthy {
		f.t.Fatalf("healthy is %v in %v", !isHealthy, state)
	}
	if is := f.informer.Version(); is != version {
		f.t.Fatalf("version %q, expected %q", is, version)
	}
	var stored []string
	for _, o := range f.informer.GetStore().List() {
		stored = append(stored, fmt.Sprintf("%s=%s", o.Key(), o.Body))
	}
	slices.Sort(stored)
	if !slices.Equal(stored, objects) {
		f.t.Fatalf("store %q, expected %q", stored, objects)
	}
}

func (f *fixture) takeErrors() []error {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	errors := f.errors
	f.errors = nil
	return errors
}

func expectResume(t *testing.T, stream *scriptedStream, version, history string) {
	t.Helper()
	r := stream.request
	if r.ResourceVersion != version || r.History != history || r.InitialEvents != pb.InitialEvents_INITIAL_EVENTS_UNSPECIFIED {
		t.Fatalf("Watch of %v, expected a resume from %q with history %q", r, version, history)
	}
	if !r.BatchInitialEvents || r.BookmarkInterval.AsDuration() != interval || r.Format != pb.PayloadFormat_PAYLOAD_FORMAT_RAW {
		t.Fatalf("Watch of %v", r)
	}
}

func expectList(t *testing.T, stream *scriptedStream) {
	t.Helper()
	r := stream.request
	if r.ResourceVersion != "" || r.History != "" || r.InitialEvents != pb.InitialEvents_INITIAL_EVENTS_SEND || !r.BatchInitialEvents {
		t.Fatalf("Watch of %v, expected a list", r)
	}
}

func thing(name, uid, version, body string) *pb.Object {
	return &pb.Object{
		Name: name, Uid: uid, ResourceVersion: version, MediaType: "application/json",
		Body: &pb.Object_Raw{Raw: []byte(body)}, Labels: map[string]string{"app": "web"},
	}
}

func initial(name, uid, version, body string) *pb.WatchResponse {
	return &pb.WatchResponse{
		Type: pb.EventType_EVENT_TYPE_ADDED, Cause: pb.Cause_CAUSE_INITIAL, Object: thing(name, uid, version, body),
	}
}

// batch makes one message of initial events.
func batch(events ...*pb.WatchResponse) *pb.WatchResponse {
	message := &pb.WatchResponse{Type: pb.EventType_EVENT_TYPE_ADDED, Cause: pb.Cause_CAUSE_INITIAL}
	for _, event := range events {
		message.Batch = append(message.Batch, event.GetObject())
	}
	return message
}

func added(at, name, uid, version, body string) *pb.WatchResponse {
	return &pb.WatchResponse{
		Type: pb.EventType_EVENT_TYPE_ADDED, ResourceVersion: at, Object: thing(name, uid, version, body),
	}
}

func modified(at, name, uid, version, body string) *pb.WatchResponse {
	message := added(at, name, uid, version, body)
	message.Type = pb.EventType_EVENT_TYPE_MODIFIED
	return message
}

func deleted(at, name, uid, version, body string) *pb.WatchResponse {
	message := added(at, name, uid, version, body)
	message.Type = pb.EventType_EVENT_TYPE_DELETED
	return message
}

func bookmark(at string) *pb.WatchResponse {
	return &pb.WatchResponse{
		Type: pb.EventType_EVENT_TYPE_BOOKMARK, ResourceVersion: at,
		Bookmark: &pb.Bookmark{
			Source: pb.SyncState_SYNC_STATE_SYNCED, SourceSeenAt: timestamppb.Now(), History: "h" + at,
		},
	}
}

func endOfList(at string) *pb.WatchResponse {
	message := bookmark(at)
	message.Bookmark.InitialEventsEnd = true
	return message
}

func failure(code codes.Code, reason string, retryIn time.Duration) *status.Status {
	s, err := status.New(code, "scripted").WithDetails(
		&errdetails.ErrorInfo{Reason: reason, Domain: errorDomain},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(retryIn)},
	)
	if err != nil {
		panic(err)
	}
	return s
}

func errorMessage(at string, s *statuspb.Status) *pb.WatchResponse {
	return &pb.WatchResponse{Type: pb.EventType_EVENT_TYPE_ERROR, ResourceVersion: at, Error: s}
}
