// SPDX-License-Identifier: Apache-2.0

package informerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"informerd/clients/go/informerdv1"
)

// Resource has the calls about one resource, with bodies decoded into T.
type Resource[T any] struct {
	client *Client
	name   string
}

// ListOptions are the options of List and ByIndex.
type ListOptions struct {
	// Selection selects objects.
	Selection Selection
	// View is the part of each body that the server sends; nil = whole bodies.
	View *View
	// MetadataOnly leaves all bodies out.
	MetadataOnly bool
	// MinResourceVersion makes the server wait until it has reached this version, at most 10 s: to read one's own writes.
	MinResourceVersion string
}

// GetOptions are the options of Get.
type GetOptions struct {
	// View is the part of the body that the server sends; nil = the whole body.
	View *View
	// MetadataOnly leaves the body out.
	MetadataOnly bool
	// MinResourceVersion is as in [ListOptions].
	MinResourceVersion string
}

// Snapshot describes the snapshot that an answer is from.
type Snapshot struct {
	// ResourceVersion is its version.
	ResourceVersion string
	// Stale is true if the server cannot reach its upstream: the snapshot is the last known state.
	Stale bool
	// SourceSeenAt is the time of the server's last contact with its upstream; zero if there was none.
	SourceSeenAt time.Time
	// Namespaces are those that the answer is limited to, because the caller may read no others; none = not limited.
	Namespaces []string
}

// ListResult is one snapshot.
type ListResult[T any] struct {
	Snapshot
	// Objects are sorted by namespace and name.
	Objects []*Object[T]
}

// GetResult is one object of a snapshot.
type GetResult[T any] struct {
	Snapshot
	// Object is never nil.
	Object *Object[T]
}

type chunk interface {
	GetResourceVersion() string
	GetObjects() []*informerdv1.Object
	GetSource() informerdv1.SyncState
	GetSourceSeenAt() *timestamppb.Timestamp
	GetNamespaces() []string
}

// NewResource returns the calls about a resource.
func NewResource[T any](client *Client, name string) Resource[T] { return Resource[T]{client, name} }

// List returns the selected objects, of one snapshot.
func (r Resource[T]) List(ctx context.Context, options ListOptions) (*ListResult[T], error) {
	ctx, cancel := r.client.withDeadline(ctx)
	defer cancel()
	selection := &options.Selection
	if err := r.require(ctx, selection.Shard, options.View); err != nil {
		return nil, err
	}
	stream, err := r.client.service.List(ctx, &informerdv1.ListRequest{
		Resource:           r.name,
		Namespace:          selection.Namespace,
		LabelSelector:      selection.LabelSelector,
		FieldSelector:      selection.fieldSelectorWithName(),
		Expression:         selection.Expression,
		Index:              selection.Index.proto(),
		Shard:              selection.Shard.proto(),
		View:               options.View.proto(),
		Format:             format(options.MetadataOnly),
		MinResourceVersion: options.MinResourceVersion,
	})
	if err != nil {
		return nil, errorOf(ctx, err)
	}
	return collect[T](ctx, stream)
}

// ByIndex returns the selected objects under a value of an index of the server, of one snapshot. Options with Selection.Index
// are refused.
func (r Resource[T]) ByIndex(ctx context.Context, index, value string, options ListOptions) (*ListResult[T], error) {
	ctx, cancel := r.client.withDeadline(ctx)
	defer cancel()
	selection := &options.Selection
	if selection.Index != nil {
		return nil, invalid("ByIndex cannot select by a second index; use Selection.Expression")
	}
	if err := r.require(ctx, selection.Shard, options.View); err != nil {
		return nil, err
	}
	stream, err := r.client.service.ByIndex(ctx, &informerdv1.ByIndexRequest{
		Resource:           r.name,
		Index:              index,
		Value:              value,
		Namespace:          selection.Namespace,
		LabelSelector:      selection.LabelSelector,
		FieldSelector:      selection.fieldSelectorWithName(),
		Expression:         selection.Expression,
		Shard:              selection.Shard.proto(),
		View:               options.View.proto(),
		Format:             format(options.MetadataOnly),
		MinResourceVersion: options.MinResourceVersion,
	})
	if err != nil {
		return nil, errorOf(ctx, err)
	}
	return collect[T](ctx, stream)
}

// Get returns one object; without it, an [Error] with the reason "OBJECT_NOT_FOUND". The namespace is empty for objects that
// have none.
func (r Resource[T]) Get(ctx context.Context, namespace, name string, options GetOptions) (*GetResult[T], error) {
	ctx, cancel := r.client.withDeadline(ctx)
	defer cancel()
	if err := r.require(ctx, nil, options.View); err != nil {
		return nil, err
	}
	response, err := r.client.service.Get(ctx, &informerdv1.GetRequest{
		Resource:           r.name,
		Namespace:          namespace,
		Name:               name,
		View:               options.View.proto(),
		Format:             format(options.MetadataOnly),
		MinResourceVersion: options.MinResourceVersion,
	})
	if err != nil {
		return nil, errorOf(ctx, err)
	}
	object, err := newObject[T](response.GetObject(), nil)
	if err != nil {
		return nil, err
	}
	return &GetResult[T]{Object: object, Snapshot: Snapshot{
		ResourceVersion: response.GetResourceVersion(),
		Stale:           isStale(response.GetSource()),
		SourceSeenAt:    timeOf(response.GetSourceSeenAt()),
	}}, nil
}

func (r Resource[T]) require(ctx context.Context, shard *Shard, view *View) error {
	if err := r.client.require(ctx, r.client.service, shard != nil, view != nil); err != nil {
		return errorOf(ctx, err)
	}
	return nil
}

// collect reads the chunks of one answer.
func collect[T, C any, P interface {
	*C
	chunk
}](ctx context.Context, stream grpc.ServerStreamingClient[C]) (*ListResult[T], error) {
	result := &ListResult[T]{}
	for isFirst := true; ; isFirst = false {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) && !isFirst {
			return result, nil
		} else if errors.Is(err, io.EOF) {
			return nil, contractError("list without a chunk")
		} else if err != nil {
			return nil, errorOf(ctx, err)
		}
		chunk := P(message)
		if isFirst {
			result.Snapshot = Snapshot{
				ResourceVersion: chunk.GetResourceVersion(),
				Stale:           isStale(chunk.GetSource()),
				SourceSeenAt:    timeOf(chunk.GetSourceSeenAt()),
				Namespaces:      chunk.GetNamespaces(),
			}
		} else if version := chunk.GetResourceVersion(); version != result.ResourceVersion {
			return nil, contractError(fmt.Sprintf("one list of two versions, %s and %s", result.ResourceVersion, version))
		}
		for _, from := range chunk.GetObjects() {
			object, err := newObject[T](from, nil)
			if err != nil {
				return nil, err
			}
			result.Objects = append(result.Objects, object)
		}
	}
}

func isStale(state informerdv1.SyncState) bool {
	return state == informerdv1.SyncState_SYNC_STATE_STALE || state == informerdv1.SyncState_SYNC_STATE_SYNCING
}

func timeOf(at *timestamppb.Timestamp) time.Time {
	if at == nil {
		return time.Time{}
	}
	return at.AsTime()
}
