// SPDX-License-Identifier: Apache-2.0

package informerd

import (
	"context"
	"slices"
	"sync"
)

// UntilOptions are the options of Until.
type UntilOptions struct {
	// Selection selects objects.
	Selection Selection
	// View is the part of each body that the server sends, and that conditions see; nil = whole bodies.
	View *View
	// MetadataOnly leaves all bodies out.
	MetadataOnly bool
}

// UntilEvent is an event that a condition is tested on.
type UntilEvent[T any] struct {
	// Type is "ADDED", "MODIFIED" or "DELETED", or "SYNCED" after the objects of the first list.
	Type string
	// Object is the new state, of a deleted object its last known one; nil with "SYNCED".
	Object *Object[T]
	// Cause is that of a deletion.
	Cause Cause
	// Count is the number of selected objects after the event; for "ADDED" of the first list and "SYNCED", that of the list.
	Count int
	// ResourceVersion is the version of the store that has the event.
	ResourceVersion string
}

// Condition returns true if the event meets it. An error ends the wait.
type Condition[T any] func(event *UntilEvent[T]) (bool, error)

// Until waits until conditions have been met, one after the other, and returns the event that met the last one. They are tested on
// each selected object as "ADDED", then on "SYNCED", then on each change; each is tested first on the event that met the one before.
// Without conditions Until waits for an object: what the server evaluates is the Expression of the selection.
//
// It waits until the context ends, with a watch of its own, like that of an [Informer]: restarts, broken connections, idle timeouts
// and expired versions do not end it, met conditions stay met, and what was deleted meanwhile is an event. It fails with the error
// of a watch that gives up.
func (r Resource[T]) Until(ctx context.Context, options UntilOptions, conditions ...Condition[T]) (*UntilEvent[T], error) {
	if len(conditions) == 0 {
		conditions = []Condition[T]{func(event *UntilEvent[T]) (bool, error) { return event.Count > 0, nil }}
	}
	informer, err := NewInformer[T](r.client, r.name, InformerOptions{
		Selection:    options.Selection,
		View:         options.View,
		MetadataOnly: options.MetadataOnly,
		OnError:      func(error) {},
	})
	if err != nil {
		return nil, err
	}
	steps := &observedSteps[T]{wake: make(chan struct{}, 1)}
	informer.cache.observe = steps.add
	informer.Start()
	defer informer.Stop()
	waiting := waiting[T]{conditions: conditions, notServed: map[objectKey]bool{}, isFirstList: true}
	for isOver := false; ; {
		for _, step := range steps.take() {
			if ctx.Err() != nil {
				// A condition may take longer than events need to come.
				return nil, informer.health.waited(ctx, "conditions not met")
			}
			if met, err := waiting.test(step); met != nil || err != nil {
				return met, err
			}
		}
		if isOver {
			return nil, informer.Err()
		}
		select {
		case <-steps.wake:
		case <-informer.over:
			isOver = true
		case <-ctx.Done():
			return nil, informer.health.waited(ctx, "conditions not met")
		}
	}
}

// observedStep is what has become visible at once in the store of an informer; the first one is its first list.
type observedStep[T any] struct {
	changes []notification[T]
	version string
}

// observedSteps are steps that wait to be tested.
type observedSteps[T any] struct {
	// wake holds one token while there may be something to take.
	wake chan struct{}

	mu    sync.Mutex
	steps []observedStep[T]
}

func (s *observedSteps[T]) add(changes []notification[T], version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = append(s.steps, observedStep[T]{slices.Clone(changes), version})
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *observedSteps[T]) take() []observedStep[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	steps := s.steps
	s.steps = nil
	return steps
}

// waiting has the conditions of one Until.
type waiting[T any] struct {
	conditions []Condition[T]
	// count is the number of selected objects; notServed has the keys of those that the server can no longer serve.
	count       int
	notServed   map[objectKey]bool
	isFirstList bool
}

// test returns the event that has met the last condition, if it is in the step.
func (w *waiting[T]) test(step observedStep[T]) (*UntilEvent[T], error) {
	isFirstList := w.isFirstList
	w.isFirstList = false
	if isFirstList {
		w.count = len(step.changes)
	}
	for i := range step.changes {
		change := &step.changes[i]
		event := &UntilEvent[T]{Type: "MODIFIED", Object: change.new, ResourceVersion: step.version}
		switch {
		case change.new == nil:
			event.Type, event.Object, event.Cause = "DELETED", change.old, change.cause
		case change.old == nil:
			event.Type = "ADDED"
		}
		if !isFirstList && !w.counts(event) {
			continue
		}
		event.Count = w.count
		if met, err := w.meets(event); met != nil || err != nil {
			return met, err
		}
	}
	if !isFirstList {
		return nil, nil
	}
	return w.meets(&UntilEvent[T]{Type: "SYNCED", Count: w.count, ResourceVersion: step.version})
}

// counts counts an object. It returns false for one that the server can no longer serve: it exists, and is not tested.
func (w *waiting[T]) counts(event *UntilEvent[T]) bool {
	key := event.Object.key()
	switch {
	case event.Type == "ADDED" && w.notServed[key]:
		delete(w.notServed, key)
	case event.Type == "ADDED":
		w.count++
	case event.Type == "DELETED" && event.Cause == CauseNotServed:
		w.notServed[key] = true
		return false
	case event.Type == "DELETED":
		w.count--
	}
	return true
}

// meets returns the event if it meets the last condition.
func (w *waiting[T]) meets(event *UntilEvent[T]) (*UntilEvent[T], error) {
	for len(w.conditions) > 0 {
		if isMet, err := w.conditions[0](event); !isMet || err != nil {
			return nil, err
		}
		w.conditions = w.conditions[1:]
	}
	return event, nil
}
