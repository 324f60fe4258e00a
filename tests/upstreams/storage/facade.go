package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
)

// facade is a storage whose writes go to etcd, by the API server's own code, and whose reads to informerd, over HTTP.
type facade struct {
	storage.Interface
	transformer *switchable
	isCluster   bool
	http        *http.Client
}

// prefix is that of the keys, below the root in etcd.
const prefix = "/pods/"

// place is what a key names: the objects of a namespace, or one of them.
type place struct{ namespace, name string }

func dial(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
}

// === writes ===

// Writers of Kubernetes join a key from its parts, so that an object without a namespace has no empty part.
func clean(key string) string {
	if strings.Contains(key, "//") {
		return path.Clean(key)
	}
	return key
}

func (f *facade) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	return f.Interface.Create(ctx, clean(key), obj, out, ttl)
}

func (f *facade) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, cached runtime.Object, opts storage.DeleteOptions) error {
	return f.Interface.Delete(ctx, clean(key), out, preconditions, validate, cached, opts)
}

func (f *facade) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, cached runtime.Object) error {
	return f.Interface.GuaranteedUpdate(ctx, clean(key), destination, ignoreNotFound, preconditions, tryUpdate, cached)
}

// UpdatePrefixTransformer changes how etcd's values are made and read, until the result is called.
func (f *facade) UpdatePrefixTransformer(modifier storagetesting.PrefixTransformerModifier) func() {
	return f.transformer.change(modifier(storagetesting.NewPrefixTransformer(nil, false)))
}

// CorruptTransformer makes all values unreadable, until the result is called.
func (f *facade) CorruptTransformer() func() {
	return f.transformer.change(corrupt{})
}

// switchable is a transformer that can be replaced.
type switchable struct {
	mu sync.Mutex
	value.Transformer
}

func (s *switchable) change(to value.Transformer) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.Transformer
	s.Transformer = to
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.Transformer = before
	}
}

func (s *switchable) current() value.Transformer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Transformer
}

func (s *switchable) TransformFromStorage(ctx context.Context, data []byte, at value.Context) ([]byte, bool, error) {
	return s.current().TransformFromStorage(ctx, data, at)
}

func (s *switchable) TransformToStorage(ctx context.Context, data []byte, at value.Context) ([]byte, error) {
	return s.current().TransformToStorage(ctx, data, at)
}

type corrupt struct{}

func (corrupt) TransformFromStorage(context.Context, []byte, value.Context) ([]byte, bool, error) {
	return nil, true, fmt.Errorf("bits flipped")
}

func (corrupt) TransformToStorage(_ context.Context, data []byte, _ value.Context) ([]byte, error) {
	return data, nil
}

// === reads ===

// at returns what a key names. A prefix below an object has no objects: it is a namespace that there is not.
func (f *facade) at(key string, recursive bool) (place, error) {
	if _, err := storage.PrepareKey(prefix, key, recursive); err != nil {
		return place{}, err
	}
	rest := strings.Trim(strings.TrimPrefix(strings.TrimSuffix(key, "/"), strings.TrimSuffix(prefix, "/")), "/")
	if f.isCluster {
		return place{name: rest}, nil
	}
	if recursive {
		return place{namespace: rest}, nil
	}
	namespace, name, found := strings.Cut(rest, "/")
	if !found {
		return place{name: rest}, nil
	}
	return place{namespace, name}, nil
}

// path returns the path of a collection, and of one object if it has a name.
func (p place) path(name string) string {
	path := "/apis/example.apiserver.k8s.io/v1"
	if p.namespace != "" {
		path += "/namespaces/" + url.PathEscape(p.namespace)
	}
	path += "/pods"
	if name != "" {
		path += "/" + url.PathEscape(name)
	}
	return path
}

// query returns the parameters of a list or watch. One object is selected by its name, as by the API server.
func (p place) query(opts storage.ListOptions, isCluster bool) url.Values {
	query, field := url.Values{}, opts.Predicate.Field
	if field == nil {
		field = fields.Everything()
	}
	if !opts.Recursive || p.name != "" {
		name := fields.OneTermEqualSelector("metadata.name", p.name)
		if p.namespace == "" && !isCluster {
			name = fields.AndSelectors(name, fields.OneTermEqualSelector("metadata.namespace", ""))
		}
		field = fields.AndSelectors(name, field)
	}
	set := func(name, value string) {
		if value != "" {
			query.Set(name, value)
		}
	}
	set("fieldSelector", field.String())
	if opts.Predicate.Label != nil {
		set("labelSelector", opts.Predicate.Label.String())
	}
	set("resourceVersion", opts.ResourceVersion)
	set("resourceVersionMatch", string(opts.ResourceVersionMatch))
	return query
}

func (f *facade) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	place, err := f.at(key, false)
	if err != nil {
		return err
	}
	query := url.Values{}
	if opts.ResourceVersion != "" {
		query.Set("resourceVersion", opts.ResourceVersion)
	}
	body, err := f.read(ctx, place.path(place.name), query)
	if apierrors.IsNotFound(err) {
		if opts.IgnoreNotFound {
			return runtime.SetZeroValue(out)
		}
		return storage.NewKeyNotFoundError(key, 0)
	}
	if err != nil {
		return err
	}
	return decode(body, out)
}

// decode decodes what informerd sends, without the uid that it gives to objects whose writer gives none.
func decode(body []byte, out runtime.Object) error {
	// The scheme of the package has no lists, only their conversion.
	if _, isList := out.(*example.PodList); isList {
		list := examplev1.PodList{}
		if err := json.Unmarshal(body, &list); err != nil {
			return err
		}
		if err := scheme.Convert(&list, out, nil); err != nil {
			return err
		}
	} else if err := runtime.DecodeInto(codecs.UniversalDecoder(), body, out); err != nil {
		return err
	}
	withoutUID := func(object *example.Pod) {
		if strings.Contains(string(object.UID), "/") {
			object.UID = ""
		}
	}
	switch out := out.(type) {
	case *example.Pod:
		withoutUID(out)
	case *example.PodList:
		for at := range out.Items {
			withoutUID(&out.Items[at])
		}
	}
	return nil
}

func (f *facade) GetList(ctx context.Context, key string, opts storage.ListOptions, out runtime.Object) error {
	place, err := f.at(key, opts.Recursive)
	if err != nil {
		return err
	}
	query := place.query(opts, f.isCluster)
	if opts.Predicate.Limit > 0 {
		query.Set("limit", strconv.FormatInt(opts.Predicate.Limit, 10))
	}
	if opts.Predicate.Continue != "" {
		query.Set("continue", opts.Predicate.Continue)
	}
	body, err := f.read(ctx, place.path(""), query)
	if err != nil {
		return err
	}
	return decode(body, out)
}

func (f *facade) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	body, err := f.read(ctx, place{}.path(""), url.Values{"limit": {"1"}})
	if err != nil {
		return 0, err
	}
	list := example.PodList{}
	if err := decode(body, &list); err != nil {
		return 0, err
	}
	return f.Versioner().ParseResourceVersion(list.ResourceVersion)
}

func (f *facade) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	place, err := f.at(key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	query := place.query(opts, f.isCluster)
	query.Set("watch", "true")
	if opts.Predicate.AllowWatchBookmarks || opts.ProgressNotify {
		query.Set("allowWatchBookmarks", "true")
	}
	if opts.SendInitialEvents != nil {
		query.Set("sendInitialEvents", strconv.FormatBool(*opts.SendInitialEvents))
		query.Set("resourceVersionMatch", string(metav1.ResourceVersionMatchNotOlderThan))
	}
	if deadline, ok := ctx.Deadline(); ok {
		query.Set("timeoutSeconds", strconv.Itoa(int((time.Until(deadline)+time.Second-1)/time.Second)))
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &watcher{cancel: cancel, events: make(chan watch.Event, 100)}
	response, err := f.request(ctx, place.path(""), query)
	if err != nil {
		cancel()
		// A watch of a caller that has gone is none that fails.
		if ctx.Err() != nil && !apierrors.IsInvalid(err) && apierrors.ReasonForError(err) == "" {
			close(w.events)
			return w, nil
		}
		return nil, err
	}
	utilflowcontrol.WatchInitialized(ctx)
	go w.receive(ctx, response.Body)
	return w, nil
}

// watcher is a watch with the buffer of the API server's own.
type watcher struct {
	cancel context.CancelFunc
	events chan watch.Event
}

func (w *watcher) Stop()                          { w.cancel() }
func (w *watcher) ResultChan() <-chan watch.Event { return w.events }

func (w *watcher) receive(ctx context.Context, body io.ReadCloser) {
	defer w.cancel()
	defer body.Close()
	defer close(w.events)
	for lines := bufio.NewReader(body); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var event struct {
			Type   watch.EventType
			Object json.RawMessage
		}
		if err := json.Unmarshal(line, &event); err != nil {
			panic(err)
		}
		var object runtime.Object = &example.Pod{}
		if event.Type == watch.Error {
			object = &metav1.Status{}
		}
		if err := decode(event.Object, object); err != nil {
			panic(err)
		}
		select {
		case w.events <- watch.Event{Type: event.Type, Object: object}:
		case <-ctx.Done():
			return
		}
	}
}

// request sends a request, and returns a Status that is not a success as the error of client-go.
func (f *facade) request(ctx context.Context, path string, query url.Values) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	response, err := f.http.Do(request)
	if err != nil || response.StatusCode == http.StatusOK {
		return response, err
	}
	defer response.Body.Close()
	status := metav1.Status{}
	if err := json.NewDecoder(response.Body).Decode(&status); err != nil {
		return nil, fmt.Errorf("%s: %w", response.Status, err)
	}
	return nil, apierrors.FromObject(&status)
}

func (f *facade) read(ctx context.Context, path string, query url.Values) ([]byte, error) {
	response, err := f.request(ctx, path, query)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}
