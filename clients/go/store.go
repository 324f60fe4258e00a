// SPDX-License-Identifier: Apache-2.0

package informerd

import (
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
)

// IndexFunc returns the values of an object in an index. For the same object it returns the same values, each time. An error or
// a panic is reported, and the object has no value.
type IndexFunc[T any] func(obj *Object[T]) ([]string, error)

// Indexers are index functions by the name of their index.
type Indexers[T any] map[string]IndexFunc[T]

// Store reads the local store of an informer. Each call sees one state: the server's at a version, never a part of a batch.
type Store[T any] interface {
	// Get returns an object; the namespace is empty for objects that have none.
	Get(namespace, name string) (obj *Object[T], exists bool)
	// GetByKey returns the object with the key "namespace/name", or with the name alone.
	GetByKey(key string) (obj *Object[T], exists bool)
	// List returns all objects, in no order.
	List() []*Object[T]
	// ListKeys returns the keys of all objects, in no order.
	ListKeys() []string
	// Len returns the number of objects.
	Len() int
}

// Indexer is a Store with local indexes.
type Indexer[T any] interface {
	Store[T]
	// ByIndex returns the objects under a value of an index, in no order. It fails if there is no such index.
	ByIndex(indexName, value string) ([]*Object[T], error)
	// IndexKeys returns the keys of the objects under a value of an index, in no order.
	IndexKeys(indexName, value string) ([]string, error)
	// ListIndexFuncValues returns the values of an index, in no order; none if there is no such index.
	ListIndexFuncValues(indexName string) []string
	// AddIndexers adds indexes, also to a store with objects. It fails if there is one of the same name.
	AddIndexers(indexers Indexers[T]) error
}

// cache is the store of an informer, its version and its handlers: all that changes as one.
type cache[T any] struct {
	report func(error)

	mu       sync.RWMutex
	objects  map[objectKey]*Object[T]
	indexes  map[string]*index[T]
	version  string
	isSynced bool
	isClosed bool
	handlers []*Registration[T]
	notes    []notification[T]
	// observe is called with the changes of each step, at first of the first list; nil unless an Until waits.
	observe func(changes []notification[T], version string)
	// advanced is closed at the next step; nil while nobody waits for it.
	advanced chan struct{}
}

type index[T any] struct {
	name    string
	values  IndexFunc[T]
	objects map[string]map[objectKey]*Object[T]
}

// change is an event: the state after it, or of a deletion the last state and its cause.
type change[T any] struct {
	object    *Object[T]
	isDeleted bool
	cause     Cause
}

// step is what becomes visible at once: changes, or a list that replaces everything, and the version after it.
type step[T any] struct {
	changes []change[T]
	list    map[objectKey]*Object[T]
	isList  bool
	version string
}

func newCache[T any](report func(error)) *cache[T] {
	return &cache[T]{report: report, objects: map[objectKey]*Object[T]{}, indexes: map[string]*index[T]{}}
}

// get returns the object that is stored under a key, if any.
func (c *cache[T]) get(key objectKey) *Object[T] {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.objects[key]
}

// apply makes a step visible, and then notifies the handlers.
func (c *cache[T]) apply(s *step[T]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	isFirstList := s.isList && !c.isSynced
	if s.isList {
		c.replace(s.list)
		c.isSynced = true
	}
	for i := range s.changes {
		c.change(&s.changes[i])
	}
	c.version = s.version
	if c.observe != nil && (len(c.notes) > 0 || isFirstList) {
		c.observe(c.notes, c.version)
	}
	if len(c.notes) > 0 || s.isList {
		for _, handler := range c.handlers {
			handler.push(c.notes, c.isSynced)
		}
		clear(c.notes)
		c.notes = c.notes[:0]
		if cap(c.notes) > maxKeptNotes {
			c.notes = nil
		}
	}
	if c.advanced != nil {
		close(c.advanced)
		c.advanced = nil
	}
}

// maxKeptNotes is the largest capacity of a buffer of notifications that is kept for the next ones.
const maxKeptNotes = 1024

func (c *cache[T]) replace(list map[objectKey]*Object[T]) {
	for key, old := range c.objects {
		if list[key] == nil {
			c.remove(key, old)
			c.notes = append(c.notes, notification[T]{old: old, cause: CauseInferred})
		}
	}
	for key, object := range list {
		c.upsert(key, object, !c.isSynced)
	}
}

func (c *cache[T]) change(change *change[T]) {
	key := change.object.key()
	if !change.isDeleted {
		c.upsert(key, change.object, false)
		return
	}
	old := c.objects[key]
	if old == nil || old.UID != change.object.UID && old.UID != "" && change.object.UID != "" {
		// Unknown, or another object has the key already: a part of a batch may come again after a resume.
		return
	}
	last := change.object
	if last.digest == 0 {
		// Without a body it may be the key alone.
		last = old
	}
	c.remove(key, old)
	c.notes = append(c.notes, notification[T]{old: last, cause: change.cause})
}

func (c *cache[T]) upsert(key objectKey, object *Object[T], isInitial bool) {
	old := c.objects[key]
	switch {
	case old == nil:
		c.notes = append(c.notes, notification[T]{new: object, isInitial: isInitial})
	case old.isSame(object):
		// Another version of the same.
	case old.UID != object.UID:
		c.notes = append(c.notes, notification[T]{old: old, cause: CauseInferred}, notification[T]{new: object})
	default:
		c.notes = append(c.notes, notification[T]{old: old, new: object})
	}
	c.objects[key] = object
	for _, index := range c.indexes {
		if old != nil {
			index.remove(key, old, c.report)
		}
		index.add(key, object, c.report)
	}
}

func (c *cache[T]) remove(key objectKey, old *Object[T]) {
	delete(c.objects, key)
	for _, index := range c.indexes {
		index.remove(key, old, c.report)
	}
}

func (i *index[T]) add(key objectKey, object *Object[T], report func(error)) {
	for _, value := range i.valuesOf(object, report) {
		objects := i.objects[value]
		if objects == nil {
			objects = map[objectKey]*Object[T]{}
			i.objects[value] = objects
		}
		objects[key] = object
	}
}

func (i *index[T]) remove(key objectKey, object *Object[T], report func(error)) {
	for _, value := range i.valuesOf(object, report) {
		delete(i.objects[value], key)
		if len(i.objects[value]) == 0 {
			delete(i.objects, value)
		}
	}
}

func (i *index[T]) valuesOf(object *Object[T], report func(error)) (values []string) {
	failed := func(value any, stack []byte) {
		report(&HandlerError{Callback: fmt.Sprintf("index %q", i.name), Object: object.Key(), Value: value, Stack: stack})
	}
	defer func() {
		if value := recover(); value != nil {
			failed(value, debug.Stack())
			values = nil
		}
	}()
	values, err := i.values(object)
	if err != nil {
		failed(err, nil)
		return nil
	}
	return values
}

// addHandler adds a handler, to which the objects of the store are new.
func (c *cache[T]) addHandler(handler *Registration[T]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	notes := make([]notification[T], 0, len(c.objects))
	for _, object := range c.objects {
		notes = append(notes, notification[T]{new: object, isInitial: true})
	}
	handler.push(notes, c.isSynced)
	if c.isClosed {
		handler.close()
	}
	c.handlers = append(c.handlers, handler)
}

// registrations returns the handlers.
func (c *cache[T]) registrations() []*Registration[T] {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Clone(c.handlers)
}

// removeHandler removes a handler; false if it is not one of this store.
func (c *cache[T]) removeHandler(handler *Registration[T]) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := len(c.handlers)
	c.handlers = slices.DeleteFunc(c.handlers, func(h *Registration[T]) bool { return h == handler })
	return len(c.handlers) < before
}

// close ends the changes: each handler gets what waits for it.
func (c *cache[T]) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isClosed = true
	for _, handler := range c.handlers {
		handler.close()
	}
}

// stopHandlers lets no further call of a handler begin; it returns the channels of the calls in progress.
func (c *cache[T]) stopHandlers() []<-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isClosed = true
	var calls []<-chan struct{}
	for _, handler := range c.handlers {
		calls = append(calls, handler.stop())
	}
	return calls
}

// reached returns true if the store has reached a version; otherwise a channel that is closed at its next step.
func (c *cache[T]) reached(version string) (bool, <-chan struct{}, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isSynced {
		order, ok := compareVersions(c.version, version)
		if !ok {
			return false, nil, invalid("version %s cannot be waited for: the store is at %s, of another lineage", version, c.version)
		}
		if order >= 0 {
			return true, nil, nil
		}
	}
	if c.advanced == nil {
		c.advanced = make(chan struct{})
	}
	return false, c.advanced, nil
}

func (c *cache[T]) state() (version string, isSynced bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.version, c.isSynced
}

// Get implements [Store].
func (c *cache[T]) Get(namespace, name string) (*Object[T], bool) {
	object := c.get(objectKey{namespace, name})
	return object, object != nil
}

// GetByKey implements [Store].
func (c *cache[T]) GetByKey(key string) (*Object[T], bool) {
	if namespace, name, ok := strings.Cut(key, "/"); ok {
		if object, exists := c.Get(namespace, name); exists {
			return object, true
		}
	}
	// Names of etcd have slashes, and no namespace.
	return c.Get("", key)
}

// List implements [Store].
func (c *cache[T]) List() []*Object[T] {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return values(c.objects)
}

// ListKeys implements [Store].
func (c *cache[T]) ListKeys() []string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return keys(c.objects)
}

// Len implements [Store].
func (c *cache[T]) Len() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.objects)
}

// ByIndex implements [Indexer].
func (c *cache[T]) ByIndex(indexName, value string) ([]*Object[T], error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	index, err := c.index(indexName)
	if err != nil {
		return nil, err
	}
	return values(index.objects[value]), nil
}

// IndexKeys implements [Indexer].
func (c *cache[T]) IndexKeys(indexName, value string) ([]string, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	index, err := c.index(indexName)
	if err != nil {
		return nil, err
	}
	return keys(index.objects[value]), nil
}

// ListIndexFuncValues implements [Indexer].
func (c *cache[T]) ListIndexFuncValues(indexName string) []string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	index, err := c.index(indexName)
	if err != nil {
		return nil
	}
	values := make([]string, 0, len(index.objects))
	for value := range index.objects {
		values = append(values, value)
	}
	return values
}

// AddIndexers implements [Indexer].
func (c *cache[T]) AddIndexers(indexers Indexers[T]) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, values := range indexers {
		if values == nil {
			return invalid("index %q has no function", name)
		}
		if c.indexes[name] != nil {
			return invalid("there is an index %q already", name)
		}
	}
	for name, values := range indexers {
		index := &index[T]{name: name, values: values, objects: map[string]map[objectKey]*Object[T]{}}
		for key, object := range c.objects {
			index.add(key, object, c.report)
		}
		c.indexes[name] = index
	}
	return nil
}

func (c *cache[T]) index(name string) (*index[T], error) {
	if index := c.indexes[name]; index != nil {
		return index, nil
	}
	names := make([]string, 0, len(c.indexes))
	for name := range c.indexes {
		names = append(names, name)
	}
	slices.Sort(names)
	return nil, invalid("there is no index %q; there are: %s", name, strings.Join(names, ", "))
}

func values[T any](objects map[objectKey]*Object[T]) []*Object[T] {
	list := make([]*Object[T], 0, len(objects))
	for _, object := range objects {
		list = append(list, object)
	}
	return list
}

func keys[T any](objects map[objectKey]*Object[T]) []string {
	list := make([]string, 0, len(objects))
	for key := range objects {
		list = append(list, key.String())
	}
	return list
}
