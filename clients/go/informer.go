// SPDX-License-Identifier: Apache-2.0

package informerd

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"informerd/clients/go/informerdv1"
)

// InformerOptions are the options of an informer. The zero value follows the whole resource with the defaults.
type InformerOptions struct {
	// Selection selects objects.
	Selection Selection
	// View is the part of each body that the server sends; nil = whole bodies.
	View *View
	// MetadataOnly leaves all bodies out; OnUpdate is then called for each version.
	MetadataOnly bool
	// Policy is the server's action when the queue of this informer is full.
	Policy Policy
	// QueueLength is the length of that queue in events; 0 = the server's default.
	QueueLength uint32
	// BookmarkInterval is the longest time without a message of the server, at least 100 ms; default 10 s. After three of them
	// without a message the informer reports StateDisconnected and reconnects.
	BookmarkInterval time.Duration
	// FirstMessageTimeout is the silence that is allowed before the first message of a stream, for one that lists at most 30 s;
	// default 100 s, because a server waits up to 90 s for a version that it has not reached.
	FirstMessageTimeout time.Duration
	// Backoff is the limit of the first delay between streams, which doubles up to MaxBackoff; defaults 200 ms and 10 s. A delay
	// that the server requests is added.
	Backoff, MaxBackoff time.Duration
	// DrainJitter is the limit of the random time after which the informer leaves a server that is shutting down; default 1 s.
	DrainJitter time.Duration
	// LagThreshold is the number of waiting notifications above which a handler is reported as lagging, without those of the
	// initial list; default 10,000. They are kept, however many they are.
	LagThreshold int
	// OnError receives what the informer recovers from: [HandlerError], [LagError], [DecodeError], [InterruptedError]. By default
	// they are logged with [slog.Default]. It runs apart from the store, for the panic of a handler before that handler's next
	// call; calls may overlap. While it is busy, at most 64 errors wait, and further ones are counted.
	OnError func(error)
}

// Informer keeps a local store equal to the selected objects of one resource at the server.
type Informer[T any] struct {
	watch    watch[T]
	cache    *cache[T]
	health   *health
	reporter *reporter
	options  InformerOptions

	// cancel ends the watch.
	cancel context.CancelFunc
	// synced is closed with the first list.
	synced chan struct{}
	// over is closed when the watch has ended; done when the handlers have, too.
	over, done chan struct{}

	// mu guards the lifecycle and the addition of handlers.
	mu        sync.Mutex
	isStarted bool
	isStopped bool
	running   sync.WaitGroup
}

const (
	minBookmarkInterval        = 100 * time.Millisecond
	defaultBookmarkInterval    = 10 * time.Second
	defaultFirstMessageTimeout = 100 * time.Second
	maxListTimeout             = 30 * time.Second
	defaultBackoff             = 200 * time.Millisecond
	defaultMaxBackoff          = 10 * time.Second
	defaultDrainJitter         = time.Second
	defaultLagThreshold        = 10_000
	maxIndexValues             = 256
)

// NewInformer returns an informer of a resource, whose bodies are decoded into T. It does nothing before [Informer.Start] or
// [Informer.Run]. It fails on invalid options.
func NewInformer[T any](client *Client, resource string, options InformerOptions) (*Informer[T], error) {
	if err := options.complete(resource); err != nil {
		return nil, err
	}
	request := options.Selection.watchRequest(resource, options.View, options.MetadataOnly)
	request.BookmarkInterval = durationpb.New(options.BookmarkInterval)
	if options.Policy != PolicyDefault || options.QueueLength != 0 {
		request.Queue = &informerdv1.QueueOptions{
			Policy: informerdv1.FullChannelPolicy(options.Policy),
			Length: options.QueueLength,
		}
	}
	reporter := newReporter(options.OnError)
	i := &Informer[T]{
		cache:    newCache[T](reporter.report),
		health:   newHealth(silentIntervals * options.BookmarkInterval),
		reporter: reporter,
		options:  options,
		cancel:   func() {},
		synced:   make(chan struct{}),
		over:     make(chan struct{}),
		done:     make(chan struct{}),
	}
	i.watch = watch[T]{
		client:   client,
		request:  request,
		options:  &i.options,
		cache:    i.cache,
		health:   i.health,
		report:   reporter.report,
		onSynced: func() { close(i.synced) },
		assembler: assembler[T]{
			stored: i.cache.get,
		},
		delays: backoffDelays{min: options.Backoff, max: options.MaxBackoff},
	}
	return i, nil
}

// complete checks the options and sets the defaults.
func (o *InformerOptions) complete(resource string) error {
	switch index := o.Selection.Index; {
	case resource == "":
		return invalid("the name of the resource is empty")
	case o.BookmarkInterval != 0 && o.BookmarkInterval < minBookmarkInterval:
		return invalid("BookmarkInterval is %v; at least %v", o.BookmarkInterval, minBookmarkInterval)
	case o.FirstMessageTimeout < 0 || o.Backoff < 0 || o.MaxBackoff < 0 || o.DrainJitter < 0 || o.LagThreshold < 0:
		return invalid("a duration or threshold of the options is negative")
	case o.Policy < PolicyDefault || o.Policy > PolicyCoalesce:
		return invalid("there is no policy %d", o.Policy)
	case index != nil && (len(index.Values) == 0 || len(index.Values) > maxIndexValues):
		return invalid("Index.Values has %d values; between 1 and %d", len(index.Values), maxIndexValues)
	case o.MetadataOnly && o.View != nil:
		return invalid("MetadataOnly and View exclude each other")
	}
	o.BookmarkInterval = orDefault(o.BookmarkInterval, defaultBookmarkInterval)
	o.FirstMessageTimeout = orDefault(o.FirstMessageTimeout, defaultFirstMessageTimeout)
	o.Backoff = orDefault(o.Backoff, defaultBackoff)
	o.MaxBackoff = max(orDefault(o.MaxBackoff, defaultMaxBackoff), o.Backoff)
	o.DrainJitter = orDefault(o.DrainJitter, defaultDrainJitter)
	if o.LagThreshold == 0 {
		o.LagThreshold = defaultLagThreshold
	}
	if o.OnError == nil {
		o.OnError = func(err error) { slog.Default().Warn("informer", "resource", resource, "error", err) }
	}
	return nil
}

// AddEventHandler adds a handler. If the store has objects already, the handler is called with each of them first.
func (i *Informer[T]) AddEventHandler(handler ResourceEventHandler[T]) *Registration[T] {
	registration := newRegistration(handler, i.options.LagThreshold, i.reporter)
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.isStopped {
		registration.stop()
		close(registration.ended)
		return registration
	}
	i.cache.addHandler(registration)
	if i.isStarted {
		i.runHandler(registration)
	}
	return registration
}

// RemoveEventHandler removes a handler. No call of it begins after it returns; a call in progress is waited for, up to a second.
func (i *Informer[T]) RemoveEventHandler(registration *Registration[T]) {
	if i.cache.removeHandler(registration) {
		waitForCalls([]<-chan struct{}{registration.stop()})
	}
}

// runHandler must be called with mu.
func (i *Informer[T]) runHandler(registration *Registration[T]) {
	i.running.Go(registration.run)
}

// AddIndexers adds local indexes, also later. It fails if there is one of the same name.
func (i *Informer[T]) AddIndexers(indexers Indexers[T]) error { return i.cache.AddIndexers(indexers) }

// GetStore returns the local store.
func (i *Informer[T]) GetStore() Store[T] { return i.cache }

// GetIndexer returns the local store with its indexes.
func (i *Informer[T]) GetIndexer() Indexer[T] { return i.cache }

// Start starts the informer and returns. It does nothing if it has been started or stopped.
func (i *Informer[T]) Start() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.isStarted || i.isStopped {
		return
	}
	i.isStarted = true
	ctx, cancel := context.WithCancel(context.Background())
	i.cancel = cancel
	i.health.start()
	go i.reporter.run()
	for _, registration := range i.cache.registrations() {
		i.runHandler(registration)
	}
	go func() {
		defer cancel()
		err := i.watch.run(ctx)
		if err != nil {
			i.health.end(err)
			i.reporter.report(fmt.Errorf("informer of %q has given up: %w", i.watch.request.GetResource(), err))
		}
		i.cache.close()
		close(i.over)
		i.mu.Lock()
		// No handler is started any more.
		i.isStopped = true
		i.mu.Unlock()
		i.running.Wait()
		i.reporter.stop()
		close(i.done)
	}()
}

// Stop ends the informer; the store remains. No handler call begins after it returns; calls in progress are waited for, up to a
// second. It may be called several times, also in a handler.
func (i *Informer[T]) Stop() {
	i.mu.Lock()
	if !i.isStarted && !i.isStopped {
		close(i.over)
		close(i.done)
	}
	i.isStopped = true
	i.health.end(ErrStopped)
	i.cancel()
	i.mu.Unlock()
	waitForCalls(append(i.cache.stopHandlers(), i.reporter.stopCalls()))
}

// Run starts the informer and runs it until the context ends, then returns nil after the last handler call has ended. If the
// informer gives up it returns the error, after the handlers have had what waited for them or the context has ended.
func (i *Informer[T]) Run(ctx context.Context) error {
	i.Start()
	select {
	case <-ctx.Done():
		i.Stop()
		<-i.done
	case <-i.done:
	}
	if err := i.Err(); err != nil && err != ErrStopped {
		return err
	}
	return nil
}

// Done returns a channel that is closed when the informer has ended: after [Informer.Stop], or after it has given up. All of its
// goroutines have ended then.
func (i *Informer[T]) Done() <-chan struct{} { return i.done }

// Err returns the error with which the informer has given up, [ErrStopped] after Stop, and nil before.
func (i *Informer[T]) Err() error { return i.health.ended() }

// HasSynced returns true after the first list is in the store. It stays true.
func (i *Informer[T]) HasSynced() bool {
	_, isSynced := i.cache.state()
	return isSynced
}

// WaitForCacheSync waits until the first list is in the store. It fails when the context ends, and with [Informer.Err] when the
// informer ends before.
func (i *Informer[T]) WaitForCacheSync(ctx context.Context) error {
	select {
	case <-i.synced:
		return nil
	case <-i.over:
		if i.HasSynced() {
			return nil
		}
		return i.Err()
	case <-ctx.Done():
		return i.health.waited(ctx, fmt.Sprintf("%q has not synced", i.watch.request.GetResource()))
	}
}

// Version returns the last safe version: the store is the server's state at it. It is empty before the first list.
func (i *Informer[T]) Version() string {
	version, _ := i.cache.state()
	return version
}

// LastSyncResourceVersion returns [Informer.Version]; client-go calls it so.
func (i *Informer[T]) LastSyncResourceVersion() string { return i.Version() }

// ReadAfter waits until the store has reached a version, for example that of an own write: decimals compare by their number,
// `<lineage>.<n>` by n within one lineage; a version of another lineage is an error. It fails when the context ends, and with
// [Informer.Err] when the informer ends before.
func (i *Informer[T]) ReadAfter(ctx context.Context, version string) error {
	if _, _, ok := splitVersion(version); !ok {
		return invalid("%q is no resource version", version)
	}
	for {
		isReached, advanced, err := i.cache.reached(version)
		if isReached || err != nil {
			return err
		}
		select {
		case <-advanced:
		case <-i.over:
			if isReached, _, _ := i.cache.reached(version); isReached {
				return nil
			}
			return i.Err()
		case <-ctx.Done():
			return i.health.waited(ctx, fmt.Sprintf("the store is at version %q, not yet at %q", i.Version(), version))
		}
	}
}

// Freshness returns how fresh the store is, computed now.
func (i *Informer[T]) Freshness() Freshness { return i.health.freshness() }

// Healthy returns true exactly when the store is the server's state as of its last message: in StateLive and StateStale.
func (i *Informer[T]) Healthy() bool {
	return i.Freshness().Healthy()
}
