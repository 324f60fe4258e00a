// SPDX-License-Identifier: Apache-2.0

package informerd

import (
	"fmt"
	"log/slog"
	"sync"
)

// reporter calls the error hook of an informer, apart from the store: a hook that blocks or panics does not hold it up.
type reporter struct {
	hook func(error)
	wake chan struct{}
	// over is closed when no call follows any more.
	over chan struct{}

	mu       sync.Mutex
	waiting  []error
	omitted  int
	isInCall bool
	// callEnded is closed after the call in progress; nil unless somebody waits for that.
	callEnded chan struct{}
	isSilent  bool
	isClosed  bool
}

// maxWaitingErrors is the number of errors that wait for a hook.
const maxWaitingErrors = 64

func newReporter(hook func(error)) *reporter {
	return &reporter{hook: hook, wake: make(chan struct{}, 1), over: make(chan struct{})}
}

// report hands an error to the hook. It never blocks.
func (r *reporter) report(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == maxWaitingErrors {
		r.omitted++
		return
	}
	r.waiting = append(r.waiting, err)
	r.signal()
}

func (r *reporter) run() {
	defer close(r.over)
	for range r.wake {
		for {
			err, isClosed := r.next()
			if err == nil && isClosed {
				return
			} else if err == nil {
				break
			}
			r.call(err)
		}
	}
}

// next returns the next error, if any, and begins a call.
func (r *reporter) next() (err error, isClosed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.isSilent:
	case len(r.waiting) > 0:
		err = r.waiting[0]
		r.waiting = append(r.waiting[:0], r.waiting[1:]...)
	case r.omitted > 0:
		err = fmt.Errorf("%d further errors were not reported, because OnError was busy", r.omitted)
		r.omitted = 0
	}
	r.isInCall = err != nil
	return err, r.isClosed
}

// reportNow calls the hook before it returns: for callers that nothing but their own next step waits for.
func (r *reporter) reportNow(err error) {
	r.mu.Lock()
	isSilent := r.isSilent
	r.mu.Unlock()
	if !isSilent {
		r.invoke(err)
	}
}

func (r *reporter) call(err error) {
	r.invoke(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isInCall = false
	if r.callEnded != nil {
		close(r.callEnded)
		r.callEnded = nil
	}
}

func (r *reporter) invoke(err error) {
	defer func() {
		if value := recover(); value != nil {
			slog.Default().Error("OnError of an informer panicked", "panic", value, "error", err)
		}
	}()
	r.hook(err)
}

// stopCalls lets no further call begin; it returns the channel that is closed after the call in progress; nil without one.
func (r *reporter) stopCalls() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isSilent = true
	if r.isInCall && r.callEnded == nil {
		r.callEnded = make(chan struct{})
	}
	return r.callEnded
}

// stop ends the reporter after what waits.
func (r *reporter) stop() {
	r.mu.Lock()
	r.isClosed = true
	r.signal()
	r.mu.Unlock()
	<-r.over
}

func (r *reporter) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}
