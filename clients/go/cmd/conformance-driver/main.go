// SPDX-License-Identifier: Apache-2.0

// Conformance-driver runs an informer for the suite informerd-conformance, which writes commands to stdin and reads events and
// replies from stdout: one JSON object a line. Commands that name a client have an informer for each.
package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	codepb "google.golang.org/genproto/googleapis/rpc/code"

	informerd "informerd/clients/go"
)

type object = informerd.Object[json.RawMessage]

// command is a line from the suite; which fields it has depends on do.
type command struct {
	Do     string `json:"do"`
	ID     int64  `json:"id"`
	Client *int64 `json:"client"`

	Target              string  `json:"target"`
	Resource            string  `json:"resource"`
	Namespace           string  `json:"namespace"`
	LabelSelector       string  `json:"label_selector"`
	Policy              string  `json:"policy"`
	BookmarkInterval    int64   `json:"bookmark_interval_ms"`
	FirstMessageTimeout int64   `json:"first_message_timeout_ms"`
	ConnectTimeout      int64   `json:"connect_timeout_ms"`
	Backoff             int64   `json:"backoff_ms"`
	MaxBackoff          int64   `json:"max_backoff_ms"`
	DrainJitter         int64   `json:"drain_jitter_ms"`
	RequestTimeout      int64   `json:"request_timeout_ms"`
	TokenFile           string  `json:"token_file"`
	Handler             handler `json:"handler"`

	Version string `json:"version"`
	Timeout int64  `json:"timeout_ms"`
}

// handler is an event handler that fails or sleeps at certain objects.
type handler struct {
	FailOn  string `json:"fail_on"`
	DelayOn string `json:"delay_on"`
	Delay   int64  `json:"delay_ms"`
	out     output
}

// output writes lines to stdout: those of one client, if the commands name any.
type output struct {
	*stdout
	client *int64
}

type stdout struct {
	mu      sync.Mutex
	encoder *json.Encoder
}

type line map[string]any

// driver is an informer.
type driver struct {
	out      output
	informer *informerd.Informer[json.RawMessage]
	running  sync.WaitGroup
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run() error {
	out, drivers := &stdout{encoder: json.NewEncoder(os.Stdout)}, map[int64]*driver{}
	ctx, cancel := context.WithCancel(context.Background())
	defer func() {
		for _, d := range drivers {
			d.running.Wait()
		}
	}()
	defer cancel()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return fmt.Errorf("cannot decode a command: %w", err)
		}
		client := int64(0)
		if c.Client != nil {
			client = *c.Client
		}
		if drivers[client] == nil {
			drivers[client] = &driver{out: output{out, c.Client}}
		}
		if err := drivers[client].do(ctx, &c); err != nil {
			return err
		}
	}
	for _, d := range drivers {
		if d.informer != nil {
			d.informer.Stop()
		}
	}
	return lines.Err()
}

func (d *driver) do(ctx context.Context, c *command) error {
	if c.Do == "start" {
		return d.start(ctx, c)
	}
	if d.informer == nil {
		return fmt.Errorf("%q before start", c.Do)
	}
	switch c.Do {
	case "state":
		d.out.write(d.state(c.ID))
	case "read_after":
		d.running.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, milliseconds(c.Timeout))
			defer cancel()
			reply := line{"reply": c.ID, "ok": true}
			if err := d.informer.ReadAfter(ctx, c.Version); err != nil {
				reply = line{"reply": c.ID, "ok": false, "error": err.Error()}
			}
			d.out.write(reply)
		})
	case "stop":
		d.informer.Stop()
		d.out.write(line{"reply": c.ID})
	default:
		return fmt.Errorf("there is no command %q", c.Do)
	}
	return nil
}

func (d *driver) start(ctx context.Context, c *command) error {
	client, err := informerd.NewClient(c.Target, informerd.ClientOptions{
		TokenFile:      c.TokenFile,
		ConnectTimeout: milliseconds(c.ConnectTimeout),
		RequestTimeout: milliseconds(c.RequestTimeout),
	})
	if err != nil {
		return err
	}
	policies := []string{"", "DROP", "BLOCK", "REPLAY", "COALESCE"}
	policy := slices.Index(policies, c.Policy)
	if policy < 0 {
		return fmt.Errorf("there is no policy %q", c.Policy)
	}
	d.informer, err = informerd.NewInformer[json.RawMessage](client, c.Resource, informerd.InformerOptions{
		Selection:           informerd.Selection{Namespace: c.Namespace, LabelSelector: c.LabelSelector},
		Policy:              informerd.Policy(policy),
		BookmarkInterval:    milliseconds(c.BookmarkInterval),
		FirstMessageTimeout: milliseconds(c.FirstMessageTimeout),
		Backoff:             milliseconds(c.Backoff),
		MaxBackoff:          milliseconds(c.MaxBackoff),
		DrainJitter:         milliseconds(c.DrainJitter),
		OnError:             d.onError,
	})
	if err != nil {
		return err
	}
	err = d.informer.AddIndexers(informerd.Indexers[json.RawMessage]{"app": func(o *object) ([]string, error) {
		if app, has := o.Labels["app"]; has {
			return []string{app}, nil
		}
		return nil, nil
	}})
	if err != nil {
		return err
	}
	c.Handler.out = d.out
	d.informer.AddEventHandler(c.Handler)
	d.informer.Start()
	d.running.Go(func() {
		if d.informer.WaitForCacheSync(ctx) == nil {
			d.out.write(line{"event": "synced"})
		}
	})
	d.running.Go(func() {
		select {
		case <-d.informer.Done():
		case <-ctx.Done():
			return
		}
		var failure *informerd.Error
		if errors.As(d.informer.Err(), &failure) {
			d.out.write(line{
				"event":  "failed",
				"code":   codepb.Code(failure.Code).String(),
				"reason": failure.Reason,
			})
		}
	})
	return nil
}

func (d *driver) onError(err error) {
	var failed *informerd.HandlerError
	var lag *informerd.LagError
	if errors.As(err, &failed) || errors.As(err, &lag) {
		d.out.write(line{"event": "handler_error", "message": err.Error()})
		return
	}
	fmt.Fprintln(os.Stderr, err)
}

func (d *driver) state(id int64) line {
	// In this order: a store that is read after the freshness has all that this is about.
	freshness := d.informer.Freshness()
	indexer := d.informer.GetIndexer()
	version, objects := d.informer.Version(), indexer.List()
	// The store may advance between two calls.
	for version != d.informer.Version() {
		version, objects = d.informer.Version(), indexer.List()
	}
	slices.SortFunc(objects, func(a, b *object) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	shown := make([]any, 0, len(objects))
	for _, o := range objects {
		shown = append(shown, show(o))
	}
	byApp := map[string][]string{}
	for _, app := range indexer.ListIndexFuncValues("app") {
		keys, err := indexer.IndexKeys("app", app)
		if err != nil {
			panic(err)
		}
		slices.Sort(keys)
		byApp[app] = keys
	}
	reply := line{
		"reply":               id,
		"version":             version,
		"state":               freshness.State.String(),
		"healthy":             freshness.Healthy(),
		"last_message_age_ms": nil,
		"source_seen_at":      nil,
		"objects":             shown,
		"by_app":              byApp,
	}
	if freshness.LastMessageAge >= 0 {
		reply["last_message_age_ms"] = freshness.LastMessageAge.Milliseconds()
	}
	if !freshness.SourceSeenAt.IsZero() {
		reply["source_seen_at"] = freshness.SourceSeenAt.UTC().Format(time.RFC3339Nano)
	}
	return reply
}

// OnAdd implements informerd.ResourceEventHandler.
func (h handler) OnAdd(o *object, _ bool) {
	h.handle(o, line{"event": "added", "object": show(o)})
}

// OnUpdate implements informerd.ResourceEventHandler.
func (h handler) OnUpdate(old, o *object) {
	h.handle(o, line{"event": "updated", "old": show(old), "object": show(o)})
}

// OnDelete implements informerd.ResourceEventHandler.
func (h handler) OnDelete(o *object, cause informerd.Cause) {
	h.handle(o, line{"event": "deleted", "object": show(o), "cause": cause.String()})
}

func (h handler) handle(o *object, event line) {
	if h.DelayOn == "*" || h.DelayOn == o.Name {
		time.Sleep(milliseconds(h.Delay))
	}
	h.out.write(event)
	if h.FailOn == o.Name {
		panic("the suite makes the handler fail on " + o.Key())
	}
}

func show(o *object) line {
	var body any
	if o.MediaType == "application/json" && json.Valid(o.Body) {
		body = o.Body
	}
	labels := o.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	return line{
		"namespace": o.Namespace,
		"name":      o.Name,
		"uid":       o.UID,
		"version":   o.ResourceVersion,
		"labels":    labels,
		"body":      body,
	}
}

func (o output) write(l line) {
	if o.client != nil {
		l["client"] = *o.client
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.encoder.Encode(l); err != nil {
		// The suite has ended.
		os.Exit(1)
	}
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
