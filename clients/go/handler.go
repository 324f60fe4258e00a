// SPDX-License-Identifier: Apache-2.0

package informerd

import (
	"runtime/debug"
	"sync"
	"time"
)

// ResourceEventHandler receives the changes of a store, one after the other, in their order. It runs apart from the store: a slow
// handler does not hold it up, its notifications wait. A panic is reported to [InformerOptions.OnError].
type ResourceEventHandler[T any] interface {
	// OnAdd is called for a new object. isInInitialList is true for the objects of the first list, and of the store when the
	// handler was added.
	OnAdd(obj *Object[T], isInInitialList bool)
	// OnUpdate is called when the body or the labels of an object have changed; of one without a body ([InformerOptions.MetadataOnly],
	// or a [View] of a body that is no map), when its version has.
	OnUpdate(oldObj, newObj *Object[T])
	// OnDelete is called with the last known state of an object that was deleted or is no longer selected.
	OnDelete(obj *Object[T], cause Cause)
}

// ResourceEventHandlerFuncs makes a [ResourceEventHandler] of functions, of which any may be nil.
type ResourceEventHandlerFuncs[T any] struct {
	AddFunc    func(obj *Object[T])
	UpdateFunc func(oldObj, newObj *Object[T])
	DeleteFunc func(obj *Object[T], cause Cause)
}

// OnAdd calls AddFunc.
func (f ResourceEventHandlerFuncs[T]) OnAdd(obj *Object[T], _ bool) {
	if f.AddFunc != nil {
		f.AddFunc(obj)
	}
}

// OnUpdate calls UpdateFunc.
func (f ResourceEventHandlerFuncs[T]) OnUpdate(oldObj, newObj *Object[T]) {
	if f.UpdateFunc != nil {
		f.UpdateFunc(oldObj, newObj)
	}
}

// OnDelete calls DeleteFunc.
func (f ResourceEventHandlerFuncs[T]) OnDelete(obj *Object[T], cause Cause) {
	if f.DeleteFunc != nil {
		f.DeleteFunc(obj, cause)
	}
}

// Registration is an event handler of an informer, with the notifications that wait for it.
type Registration[T any] struct {
	handler   ResourceEventHandler[T]
	threshold int
	reporter  *reporter
	// wake holds one token while there may be something to do.
	wake chan struct{}
	// ended is closed when no call follows any more.
	ended chan struct{}

	mu sync.Mutex
	// waiting are the notifications that are not yet in the batch that is being handled.
	waiting []notification[T]
	// changes is the number of notifications whose call has not begun, without those of the initial list: that is no lag,
	// however long it is.
	changes  int
	isInCall bool
	// callEnded is closed after the call in progress; nil unless somebody waits for that.
	callEnded chan struct{}
	// isLagging is true from the report of a lag until the handler has caught up.
	isLagging bool
	// initial is the number of notifications of the initial list whose call has not ended.
	initial    int
	hasInitial bool
	// isStopped: no further call. isClosed: no further notification.
	isStopped, isClosed bool
}

// notification is one call of a handler: without old OnAdd, without new OnDelete.
type notification[T any] struct {
	old, new  *Object[T]
	cause     Cause
	isInitial bool
}

// maxStopWait limits the wait for handler calls that are in progress: only their beginning has to be waited for.
const maxStopWait = time.Second

func newRegistration[T any](handler ResourceEventHandler[T], threshold int, reporter *reporter) *Registration[T] {
	return &Registration[T]{
		handler:   handler,
		threshold: threshold,
		reporter:  reporter,
		wake:      make(chan struct{}, 1),
		ended:     make(chan struct{}),
	}
}

// HasSynced returns true after the handler has returned from the calls for the initial list.
func (r *Registration[T]) HasSynced() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hasInitial && r.initial == 0
}

// push adds notifications. isSynced: the initial list is among them or before them.
func (r *Registration[T]) push(notifications []notification[T], isSynced bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hasInitial = r.hasInitial || isSynced
	if r.isClosed || len(notifications) == 0 {
		return
	}
	for i := range notifications {
		if notifications[i].isInitial {
			r.initial++
		} else {
			r.changes++
		}
	}
	r.waiting = append(r.waiting, notifications...)
	if r.changes > r.threshold && !r.isLagging {
		r.isLagging = true
		r.reporter.report(&LagError{Waiting: r.changes})
	}
	r.signal()
}

// run calls the handler until the registration is stopped, or closed and empty.
func (r *Registration[T]) run() {
	defer close(r.ended)
	var batch []notification[T]
	for range r.wake {
		for {
			r.mu.Lock()
			clear(batch)
			if cap(batch) > maxKeptNotes {
				batch = nil
			}
			batch, r.waiting = r.waiting, batch[:0]
			isOver := r.isStopped || r.isClosed && len(batch) == 0
			if len(batch) == 0 {
				r.isLagging = false
			}
			r.mu.Unlock()
			if isOver {
				return
			}
			if len(batch) == 0 {
				break
			}
			for i := range batch {
				if !r.begin(batch[i].isInitial) {
					return
				}
				r.call(&batch[i])
				r.end(batch[i].isInitial)
				batch[i] = notification[T]{}
			}
		}
	}
}

func (r *Registration[T]) begin(isInitial bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isStopped {
		return false
	}
	if !isInitial {
		r.changes--
	}
	r.isInCall = true
	return true
}

func (r *Registration[T]) end(isInitial bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if isInitial {
		r.initial--
	}
	r.isInCall = false
	if r.callEnded != nil {
		close(r.callEnded)
		r.callEnded = nil
	}
}

func (r *Registration[T]) call(n *notification[T]) {
	callback, object := "OnUpdate", n.new
	defer func() {
		if value := recover(); value != nil {
			r.reporter.reportNow(&HandlerError{Callback: callback, Object: object.Key(), Value: value, Stack: debug.Stack()})
		}
	}()
	switch {
	case n.old == nil:
		callback = "OnAdd"
		r.handler.OnAdd(n.new, n.isInitial)
	case n.new == nil:
		callback, object = "OnDelete", n.old
		r.handler.OnDelete(n.old, n.cause)
	default:
		r.handler.OnUpdate(n.old, n.new)
	}
}

// close lets the handler have what waits, and nothing after it.
func (r *Registration[T]) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isClosed = true
	r.signal()
}

// stop lets no further call begin. It returns the channel that is closed after the call in progress; nil without one.
func (r *Registration[T]) stop() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isStopped, r.isClosed = true, true
	r.waiting = nil
	r.signal()
	if r.isInCall && r.callEnded == nil {
		r.callEnded = make(chan struct{})
	}
	return r.callEnded
}

func (r *Registration[T]) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// waitForCalls waits until calls have ended, but not for long: a call that goes on has begun, and may itself be waiting for this.
func waitForCalls(calls []<-chan struct{}) {
	timer := time.NewTimer(maxStopWait)
	defer timer.Stop()
	for _, call := range calls {
		if call == nil {
			continue
		}
		select {
		case <-call:
		case <-timer.C:
			return
		}
	}
}
