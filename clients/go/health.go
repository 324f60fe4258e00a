// SPDX-License-Identifier: Apache-2.0

package informerd

import (
	"context"
	"fmt"
	"sync"
	"time"

	"informerd/clients/go/informerdv1"
)

// State is the relation of a local store to the server's.
type State int

// States.
const (
	// StateDisconnected: there is no stream, or none that has sent anything for three bookmark intervals.
	StateDisconnected State = iota
	// StateSyncing: the store is not yet known to be current.
	StateSyncing
	// StateLive: the store is the server's state as of its last message, and the server reaches its upstream.
	StateLive
	// StateStale is like StateLive, but the server does not reach its upstream.
	StateStale
)

// Freshness is the state of a local store, and the age of what it is based on.
type Freshness struct {
	// State is the relation to the server's store.
	State State
	// SourceSeenAt is the time of the server's last contact with its upstream, from the last message about it; zero before.
	SourceSeenAt time.Time
	// LastMessageAge is the time since the last message of the server; negative before the first one.
	LastMessageAge time.Duration
}

// Healthy is whether the store is that of the server: the state is [StateLive] or [StateStale].
func (f Freshness) Healthy() bool {
	return f.State == StateLive || f.State == StateStale
}

// silentIntervals are bookmark intervals without a message that no server lets pass while it runs.
const silentIntervals = 3

// health is the state of the connection of an informer.
type health struct {
	// silence is the time without a message after which the connection counts as dead.
	silence time.Duration

	mu          sync.Mutex
	err         error
	isStarted   bool
	phase       phase
	phaseAt     time.Time
	lastMessage time.Time
	// isCurrent: nothing is missing in the store.
	isCurrent    bool
	isStale      bool
	sourceSeenAt time.Time
	// interruption is the last error of a stream, until the store is current again.
	interruption error
}

type phase int

const (
	// connecting: no stream yet, and none has failed; or a hole is being healed.
	connecting phase = iota
	open
	closed
)

func newHealth(silence time.Duration) *health { return &health{silence: silence} }

// String returns for example "LIVE".
func (s State) String() string {
	switch s {
	case StateSyncing:
		return "SYNCING"
	case StateLive:
		return "LIVE"
	case StateStale:
		return "STALE"
	default:
		return "DISCONNECTED"
	}
}

func (h *health) start() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.isStarted, h.phaseAt = true, time.Now()
}

// end ends the informer; the first error counts.
func (h *health) end(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil {
		h.err = err
	}
}

func (h *health) ended() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// opened records an open stream.
func (h *health) opened() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.phase, h.phaseAt = open, time.Now()
}

// lost records the end of a stream. A hole leaves the connection as it is.
func (h *health) lost(isHole bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.isCurrent = false
	h.phase = closed
	if isHole {
		h.phase, h.phaseAt = connecting, time.Now()
	}
}

// received records a message.
func (h *health) received(bookmark *informerdv1.Bookmark) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lastMessage = time.Now()
	if bookmark == nil {
		return
	}
	if bookmark.GetSource() != informerdv1.SyncState_SYNC_STATE_UNSPECIFIED {
		h.isStale = isStale(bookmark.GetSource())
	}
	if bookmark.GetSourceSeenAt() != nil {
		h.sourceSeenAt = bookmark.GetSourceSeenAt().AsTime()
	}
}

// caughtUp records that nothing is missing in the store.
func (h *health) caughtUp() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.isCurrent, h.interruption = true, nil
}

// interrupted records the error of a stream.
func (h *health) interrupted(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.interruption = err
}

// waited returns the error of a wait that its context has ended.
func (h *health) waited(ctx context.Context, what string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.interruption == nil {
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
	return fmt.Errorf("%s: %w; last error: %v", what, context.Cause(ctx), h.interruption)
}

func (h *health) freshness() Freshness {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	freshness := Freshness{SourceSeenAt: h.sourceSeenAt, LastMessageAge: -1}
	last := h.phaseAt
	if !h.lastMessage.IsZero() {
		freshness.LastMessageAge = now.Sub(h.lastMessage)
		if h.lastMessage.After(last) {
			last = h.lastMessage
		}
	}
	isConnected := h.isStarted && h.err == nil && h.phase != closed && now.Sub(last) < h.silence
	switch {
	case !isConnected:
		freshness.State = StateDisconnected
	case !h.isCurrent:
		freshness.State = StateSyncing
	case h.isStale:
		freshness.State = StateStale
	default:
		freshness.State = StateLive
	}
	return freshness
}
