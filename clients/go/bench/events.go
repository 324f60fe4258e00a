// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	informerd "informerd/clients/go"
	pb "informerd/clients/go/informerdv1"
)

const (
	things     = 10_000
	thingBytes = 1024
	eventCount = 500_000
	runs       = 5
)

// thing is a body of which a program reads two fields.
type thing struct {
	Spec struct {
		NodeName string `json:"nodeName"`
	} `json:"spec"`
	N int `json:"n"`
}

// events measures one informer, on one core, of a server in another process that sends encoded events as fast as they are read.
func events([]string) error {
	runtime.GOMAXPROCS(1)
	socket, remove, err := temporary("s")
	if err != nil {
		return err
	}
	defer remove()
	stop, err := start("serve-events", socket)
	if err != nil {
		return err
	}
	defer stop()
	if err := awaitSocket(socket); err != nil {
		return err
	}
	fmt.Printf("%d changes of %d objects of %d bytes, one index, one handler, GOMAXPROCS=1; %d runs of each\n", eventCount, things, thingBytes, runs)
	for range runs {
		if err := measure[json.RawMessage]("json.RawMessage", socket); err != nil {
			return err
		}
		if err := measure[thing]("a struct of two fields", socket); err != nil {
			return err
		}
	}
	return nil
}

func measure[T any](name, socket string) error {
	client, err := informerd.NewClient("unix:"+socket, informerd.ClientOptions{})
	if err != nil {
		return err
	}
	defer client.Close()
	informer, err := informerd.NewInformer[T](client, "things", informerd.InformerOptions{})
	if err != nil {
		return err
	}
	err = informer.AddIndexers(informerd.Indexers[T]{"app": func(o *informerd.Object[T]) ([]string, error) {
		return []string{o.Labels["app"]}, nil
	}})
	if err != nil {
		return err
	}
	var updates atomic.Int64
	handled := make(chan struct{})
	informer.AddEventHandler(informerd.ResourceEventHandlerFuncs[T]{UpdateFunc: func(_, _ *informerd.Object[T]) {
		if updates.Add(1) == eventCount {
			close(handled)
		}
	}})
	informer.Start()
	defer func() { informer.Stop(); <-informer.Done() }()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if err := informer.WaitForCacheSync(ctx); err != nil {
		return err
	}
	began := time.Now()
	before, err := processorTime()
	if err != nil {
		return err
	}
	if err := informer.ReadAfter(ctx, strconv.Itoa(things+eventCount)); err != nil {
		return err
	}
	<-handled
	took := time.Since(began)
	after, err := processorTime()
	if err != nil {
		return err
	}
	processor := after - before
	fmt.Printf("%-24s %7.0f events in a second of processor time (%.2f µs each); %7.0f in a second\n", name,
		eventCount/processor.Seconds(), processor.Seconds()*1e6/eventCount, eventCount/took.Seconds())
	return nil
}

// eventServer sends a list, and then changes of it.
type eventServer struct {
	pb.UnimplementedInformerServiceServer
	// bodies has two encoded objects for each key; each change replaces one by the other.
	bodies [2][][]byte
}

// encoded is a message that is sent as it is.
type encoded []byte

// codec is that of protobuf, and passes encoded messages.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	bytes, isEncoded := v.(encoded)
	if !isEncoded {
		var err error
		if bytes, err = proto.Marshal(v.(proto.Message)); err != nil {
			return nil, err
		}
	}
	return mem.BufferSlice{mem.SliceBuffer(bytes)}, nil
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	return proto.Unmarshal(data.Materialize(), v.(proto.Message))
}

func serveEvents(arguments []string) error {
	server := &eventServer{}
	for round := range server.bodies {
		for key := range things {
			body := fmt.Sprintf(`{"metadata":{"name":"thing-%d"},"spec":{"nodeName":"node-%d"},"n":%d,"text":""}`, key, key%100, round)
			body = strings.Replace(body, `"text":"`, `"text":"`+strings.Repeat("x", thingBytes-len(body)), 1)
			message, err := proto.Marshal(&pb.WatchResponse{
				Type: pb.EventType_EVENT_TYPE_MODIFIED,
				Object: &pb.Object{
					Namespace: fmt.Sprintf("namespace-%d", key%50), Name: fmt.Sprintf("thing-%d", key), Uid: fmt.Sprintf("uid-%d", key),
					Labels:     map[string]string{"app": fmt.Sprintf("app-%d", key%200), "tier": "backend", "team": "a"},
					ApiVersion: "v1", Kind: "Thing", MediaType: "application/json", Body: &pb.Object_Raw{Raw: []byte(body)},
				},
			})
			if err != nil {
				return err
			}
			server.bodies[round] = append(server.bodies[round], message)
		}
	}
	listener, err := net.Listen("unix", arguments[0])
	if err != nil {
		return err
	}
	serving := grpc.NewServer(grpc.ForceServerCodecV2(codec{}))
	pb.RegisterInformerServiceServer(serving, server)
	return serving.Serve(listener)
}

func (s *eventServer) Watch(_ *pb.WatchRequest, stream pb.InformerService_WatchServer) error {
	// Fields that follow an encoded message are merged with it.
	send := func(body []byte, more *pb.WatchResponse) error {
		suffix, err := proto.Marshal(more)
		if err != nil {
			return err
		}
		return stream.SendMsg(encoded(append(append(make([]byte, 0, len(body)+len(suffix)), body...), suffix...)))
	}
	for key := range things {
		version := strconv.Itoa(key + 1)
		if err := send(s.bodies[1][key], &pb.WatchResponse{Type: pb.EventType_EVENT_TYPE_ADDED, Object: &pb.Object{ResourceVersion: version}}); err != nil {
			return err
		}
	}
	err := stream.Send(&pb.WatchResponse{
		Type: pb.EventType_EVENT_TYPE_BOOKMARK, ResourceVersion: strconv.Itoa(things),
		Bookmark: &pb.Bookmark{InitialEventsEnd: true, Source: pb.SyncState_SYNC_STATE_SYNCED},
	})
	if err != nil {
		return err
	}
	for n := range eventCount {
		version := strconv.Itoa(things + n + 1)
		body := s.bodies[n/things%2][n%things]
		if err := send(body, &pb.WatchResponse{ResourceVersion: version, Object: &pb.Object{ResourceVersion: version}}); err != nil {
			return err
		}
	}
	<-stream.Context().Done()
	return nil
}
