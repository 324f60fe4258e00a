// SPDX-License-Identifier: Apache-2.0

package informerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"informerd/clients/go/informerdv1"
)

// watch reads successive streams into a cache, until its context ends or it gives up. One goroutine owns it.
//
//	          ┌─────── delay is over ────────┐
//	          ▼                              │
//	──▶ run: stream ── ended, interrupted ──▶ decide ── permanent error ──▶ over
type watch[T any] struct {
	client   *Client
	request  *informerdv1.WatchRequest
	options  *InformerOptions
	cache    *cache[T]
	health   *health
	report   func(error)
	onSynced func()

	assembler assembler[T]
	delays    backoffDelays
	// conn is kept from stream to stream, unless it is dead or its server is draining.
	conn *grpc.ClientConn
	// isAnswered: the last stream ended with a status of the server. listsAgain: the watch lists in place of a resume. Both until a
	// stream has caught up.
	isAnswered, listsAgain bool
	// tooLarge counts the rejections of one version as not yet reached.
	tooLarge int
	// isRejected: the last stream was rejected for its credentials.
	isRejected bool
	hasSynced  bool
	// leaveAt is the time to leave a server that is draining; zero if it is not.
	leaveAt time.Time
	leave   *time.Timer
	// hasMessage: the stream has delivered something.
	hasMessage bool
}

// Ends of a stream that are not the status of the call.
var (
	errSilent   = errors.New("no message")
	errDraining = errors.New("the server is shutting down")
	errHole     = errors.New("events were dropped")
)

// violation is a message that no server of the contract sends.
type violation struct{ error }

// run returns nil when the context has ended, and otherwise the error with which the informer gives up.
func (w *watch[T]) run(ctx context.Context) error {
	defer w.disconnect()
	for {
		err := w.stream(ctx)
		w.health.lost(errors.Is(err, errHole))
		if ctx.Err() != nil {
			return nil
		}
		delay, err := w.decide(err)
		if err != nil {
			return err
		}
		if sleep(ctx, delay) != nil {
			return nil
		}
	}
}

// stream opens one stream and reads it to its end. It returns nil when the server has ended it with OK.
func (w *watch[T]) stream(ctx context.Context) error {
	w.leaveAt, w.hasMessage = time.Time{}, false
	timeout := w.options.FirstMessageTimeout
	isListing := w.assembler.begin()
	if isListing {
		timeout = min(timeout, maxListTimeout)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(timeout, func() { cancel(errSilent) })
	defer silence.Stop()
	defer func() {
		if w.leave != nil {
			w.leave.Stop()
		}
	}()

	stream, err := w.open(ctx, isListing)
	if err != nil {
		return endOf(ctx, err, timeout)
	}
	// An error comes again from Recv.
	if header, _ := stream.Header(); header != nil {
		w.health.opened()
	}
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return endOf(ctx, err, timeout)
		}
		// The time that the informer itself takes is no silence of the server.
		silence.Stop()
		timeout = w.health.silence
		if err := w.receive(message, cancel); err != nil {
			return err
		}
		silence.Reset(timeout)
	}
}

// endOf returns the reason for which a stream was cancelled, with the timeout if it was silence, or else the error of the call.
func endOf(ctx context.Context, err error, timeout time.Duration) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, errSilent) {
		return fmt.Errorf("%w for %v", errSilent, timeout)
	} else if cause != nil {
		return cause
	}
	return err
}

func (w *watch[T]) open(ctx context.Context, isListing bool) (informerdv1.InformerService_WatchClient, error) {
	if w.conn == nil {
		conn, err := w.client.dial()
		if err != nil {
			// A file of the credentials, which was readable before: it is being replaced.
			return nil, &Error{Code: codes.Unavailable, Message: err.Error()}
		}
		w.conn = conn
	}
	service := informerdv1.NewInformerServiceClient(w.conn)
	if err := w.client.require(ctx, service, w.request.Shard != nil, w.request.View != nil); err != nil {
		return nil, err
	}
	request := proto.CloneOf(w.request)
	if isListing {
		request.InitialEvents = informerdv1.InitialEvents_INITIAL_EVENTS_SEND
	} else {
		request.ResourceVersion, request.History = w.assembler.version, w.assembler.history
	}
	return service.Watch(ctx, request)
}

// receive applies a message. An error ends the stream.
func (w *watch[T]) receive(message *informerdv1.WatchResponse, cancel context.CancelCauseFunc) error {
	w.health.received(message.GetBookmark())
	step, progress, err := w.assembler.receive(message)
	if err != nil {
		return violation{err}
	}
	if step != nil {
		w.apply(step)
	}
	if progress.failure != nil {
		return progress.failure
	}
	w.hasMessage, w.isRejected, w.tooLarge = true, false, 0
	if progress.hasHole {
		return errHole
	}
	if progress.hasCaughtUp {
		w.health.caughtUp()
		w.delays.reset()
		w.isAnswered, w.listsAgain = false, false
	}
	if progress.bookmark.GetDraining() && w.leaveAt.IsZero() {
		// Until then the stream is as good as ever.
		w.leaveAt = time.Now().Add(rand.N(w.options.DrainJitter))
		w.leave = time.AfterFunc(time.Until(w.leaveAt), func() { cancel(errDraining) })
	}
	return nil
}

func (w *watch[T]) apply(step *step[T]) {
	for i := range step.changes {
		w.reportUndecoded(step.changes[i].object)
	}
	for _, object := range step.list {
		w.reportUndecoded(object)
	}
	w.cache.apply(step)
	if !w.hasSynced {
		w.hasSynced = true
		w.onSynced()
	}
}

func (w *watch[T]) reportUndecoded(object *Object[T]) {
	if object.DecodeError != nil {
		w.report(&DecodeError{Object: object.Key(), Err: object.DecodeError})
	}
}

// decide reacts to the end of a stream: the delay until the next one, or the error with which the informer gives up.
func (w *watch[T]) decide(ended error) (time.Duration, error) {
	if errors.Is(ended, errHole) {
		return w.delays.next(), nil
	}
	var failure *Error
	var violated violation
	switch {
	case ended == nil:
		return w.delays.next(), nil
	case errors.As(ended, &violated):
		w.assembler.expire()
		w.disconnect()
		return w.interrupted(ended, w.delays.next()), nil
	case errors.Is(ended, errDraining):
		failure = &Error{Code: codes.Unavailable, Reason: reasonDraining}
	case errors.Is(ended, errSilent):
		w.isAnswered = false
		w.disconnect()
		return w.interrupted(ended, w.delays.next()), nil
	default:
		failure = errorOf(context.Background(), ended)
	}

	if isAnswer(failure) && !w.isAnswered {
		// The failures before were those of a server that could not be reached.
		w.delays.reset()
	}
	w.isAnswered = isAnswer(failure)
	lists := false
	switch recoveryOf(failure, w.hasSynced, w.isRejected) {
	case giveUp:
		return 0, failure
	case listAgain:
		lists = true
	}
	if !w.isAnswered || failure.Code == codes.Unauthenticated {
		// Not the server's status, so perhaps a dead connection; or one that presented an old certificate.
		w.disconnect()
	}
	switch {
	case failure.Reason == reasonDraining:
		w.disconnect()
		if w.leaveAt.IsZero() {
			w.leaveAt = time.Now().Add(rand.N(w.options.DrainJitter))
		}
		delay := max(time.Until(w.leaveAt), failure.RetryAfter)
		if !w.hasMessage {
			// Another connection has led to a server that is draining, too.
			delay += w.delays.next()
		}
		return delay, nil
	case failure.Reason == reasonVersionTooLarge && w.assembler.version != "":
		if w.tooLarge++; w.tooLarge == 2 {
			// The upstream may have been restored to an earlier state.
			w.tooLarge = 0
			lists = true
		}
	case failure.Code == codes.Unauthenticated:
		w.isRejected = true
	}
	if lists {
		w.assembler.expire()
		if !w.listsAgain {
			w.listsAgain = true
			return w.interrupted(failure, failure.RetryAfter+rand.N(w.options.DrainJitter)), nil
		}
	}
	return w.interrupted(failure, failure.RetryAfter+w.delays.next()), nil
}

func (w *watch[T]) interrupted(err error, delay time.Duration) time.Duration {
	w.health.interrupted(err)
	w.report(&InterruptedError{Resource: w.request.GetResource(), Err: err, RetryIn: delay})
	return delay
}

func (w *watch[T]) disconnect() {
	if w.conn != nil {
		// The error is only that it was closed already.
		_ = w.conn.Close()
		w.conn = nil
	}
}

// sleep waits for a duration, or returns the error of the context as soon as it ends.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
