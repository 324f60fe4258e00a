// SPDX-License-Identifier: Apache-2.0

package informerd

import (
	"fmt"
	"slices"

	"informerd/clients/go/informerdv1"
)

// assembler makes steps of the messages of successive streams. No IO, no clock.
//
// A list is one step, at its end. An atomic batch is one step: while the version has not advanced, or is lower than the object's
// own, the batch is open and its events are pending. A stream that breaks off discards both; the next one repeats them.
type assembler[T any] struct {
	// stored returns the object that the store has under a key, of which a new one shares what is equal.
	stored func(objectKey) *Object[T]

	// version is the last safe version, of this history; empty: the next stream has to list.
	version, history string
	namespaces       []string
	isListing        bool
	initial          map[objectKey]*Object[T]
	pending          []change[T]
}

// progress is the content of a message besides its step.
type progress struct {
	// hasCaughtUp: the state at the version is complete.
	hasCaughtUp bool
	bookmark    *informerdv1.Bookmark
	// hasHole: the stream has lost events, and the next one has to begin at the version.
	hasHole bool
	// failure is the error of the last message.
	failure *Error
}

// begin begins the next stream; it returns true if it lists.
func (a *assembler[T]) begin() bool {
	a.pending = nil
	a.isListing = a.version == ""
	a.initial = nil
	if a.isListing {
		a.initial = map[objectKey]*Object[T]{}
	}
	return a.isListing
}

// expire makes the next stream list: the version cannot be resumed from.
func (a *assembler[T]) expire() { a.version = "" }

// receive takes a message. It returns the step that it completes, if any. An error is a violation of the contract.
func (a *assembler[T]) receive(m *informerdv1.WatchResponse) (*step[T], progress, error) {
	switch m.GetType() {
	case informerdv1.EventType_EVENT_TYPE_ADDED, informerdv1.EventType_EVENT_TYPE_MODIFIED,
		informerdv1.EventType_EVENT_TYPE_DELETED:
		s, err := a.events(m)
		return s, progress{}, err
	case informerdv1.EventType_EVENT_TYPE_BOOKMARK:
		return a.bookmark(m)
	case informerdv1.EventType_EVENT_TYPE_DROPPED:
		return a.dropped(m)
	case informerdv1.EventType_EVENT_TYPE_ERROR:
		if m.GetError() == nil {
			return nil, progress{}, contractError("ERROR without a status")
		}
		failed := progress{failure: errorOfProto(m.GetError())}
		if a.isListing || m.GetResourceVersion() == "" {
			return nil, failed, nil
		}
		return a.advance(m.GetResourceVersion()), failed, nil
	default:
		return nil, progress{}, contractError(fmt.Sprintf("message of the unknown type %d", m.GetType()))
	}
}

// events takes the event of a message, or the initial events of its batch.
func (a *assembler[T]) events(m *informerdv1.WatchResponse) (*step[T], error) {
	if len(m.GetBatch()) == 0 {
		if m.GetObject() == nil {
			return nil, contractError("event without an object")
		}
		return a.event(m, m.GetObject())
	}
	if !a.isListing {
		return nil, contractError("batch that is not of the initial events")
	}
	for _, object := range m.GetBatch() {
		if _, err := a.event(m, object); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func (a *assembler[T]) event(m *informerdv1.WatchResponse, wire *informerdv1.Object) (*step[T], error) {
	key := objectKey{wire.GetNamespace(), wire.GetName()}
	object, err := newObject(wire, a.stored(key))
	if err != nil {
		return nil, err
	}
	if a.isListing {
		if m.GetType() != informerdv1.EventType_EVENT_TYPE_ADDED {
			return nil, contractError(m.GetType().String() + " among the initial events")
		}
		a.initial[key] = object
		return nil, nil
	}
	version := m.GetResourceVersion()
	if version == "" {
		return nil, contractError("event without a version to resume from")
	}
	event := change[T]{object: object}
	if m.GetType() == informerdv1.EventType_EVENT_TYPE_DELETED {
		event.isDeleted, event.cause = true, Cause(m.GetCause())
	}
	if !m.GetOpen() && isLower(version, object.ResourceVersion) && version != a.version {
		// The selection has missed versions: the version before this batch is higher than the last one. What was pending is
		// complete, and this batch is not.
		complete := a.advance(version)
		a.pending = append(a.pending, event)
		return complete, nil
	}
	isFirst := len(a.pending) == 0
	a.pending = append(a.pending, event)
	if version == a.version && (!m.GetOpen() || !isFirst) {
		return nil, nil
	}
	return a.complete(version), nil
}

func (a *assembler[T]) bookmark(m *informerdv1.WatchResponse) (*step[T], progress, error) {
	bookmark := m.GetBookmark()
	p := progress{bookmark: bookmark}
	version := m.GetResourceVersion()
	switch {
	case a.isListing && !bookmark.GetInitialEventsEnd():
		return nil, p, nil
	case version == "" && a.isListing:
		return nil, p, contractError("end of the initial events without a version")
	case version == "":
		return nil, p, nil
	}
	p.hasCaughtUp = true
	hasOtherNamespaces := !slices.Equal(a.namespaces, bookmark.GetNamespaces())
	a.history, a.namespaces = bookmark.GetHistory(), bookmark.GetNamespaces()
	if a.isListing {
		list := &step[T]{list: a.initial, isList: true, version: version}
		a.version, a.isListing, a.initial = version, false, nil
		return list, p, nil
	}
	if hasOtherNamespaces && len(a.pending) > 0 {
		// Objects have left and entered with the namespaces, at the version that the stream had already.
		return a.complete(version), p, nil
	}
	return a.advance(version), p, nil
}

func (a *assembler[T]) dropped(m *informerdv1.WatchResponse) (*step[T], progress, error) {
	after := m.GetDropped().GetAfterResourceVersion()
	if after == "" {
		return nil, progress{}, contractError("DROPPED without the version before the hole")
	}
	if a.isListing {
		return nil, progress{}, contractError("DROPPED among the initial events")
	}
	return a.advance(after), progress{hasHole: true}, nil
}

// advance completes what is pending if the version has advanced.
func (a *assembler[T]) advance(version string) *step[T] {
	if version == a.version {
		return nil
	}
	return a.complete(version)
}

func (a *assembler[T]) complete(version string) *step[T] {
	s := &step[T]{changes: a.pending, version: version}
	a.version, a.pending = version, nil
	return s
}
