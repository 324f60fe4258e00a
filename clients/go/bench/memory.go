// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	informerd "informerd/clients/go"
)

const podCount = 20_000

// usage is what a follower prints when it has everything.
type usage struct {
	Objects int
	// Heap is in use after a collection, Resident the memory of the process then, both in bytes.
	Heap, Resident uint64
	Ready          time.Duration
}

// podFields is the part of a pod that many programs need.
type podFields struct {
	Spec struct {
		NodeName string `json:"nodeName"`
	} `json:"spec"`
	Status struct {
		Phase string `json:"phase"`
		PodIP string `json:"podIP"`
	} `json:"status"`
}

// memory measures followers of the same pods, each a process of its own: client-go's informer of an HTTP server that lists and
// watches as an API server does, and informers of informerd, which reads the same pods from a file.
func memory([]string) error {
	program := os.Getenv("INFORMERD")
	if program == "" {
		return fmt.Errorf("INFORMERD does not name the server")
	}
	path, remove, err := temporary("pods.jsonl")
	if err != nil {
		return err
	}
	defer remove()
	pods := make([]string, podCount)
	size := 0
	for at := range pods {
		pods[at] = pod(at)
		size += len(pods[at])
	}
	if err := writeEvents(path, pods); err != nil {
		return err
	}
	api := httptest.NewServer(&apiServer{pods: pods})
	// Its watches do not end.
	defer api.CloseClientConnections()
	socket := filepath.Join(filepath.Dir(path), "s")
	stop, err := startProgram(program, "serve", "--stream", "pods="+path, "--listen", "unix:"+socket, "--admin-listen", "none", "--log", "warn")
	if err != nil {
		return err
	}
	defer stop()
	if err := awaitSocket(socket); err != nil {
		return err
	}
	if err := awaitPods("unix:" + socket); err != nil {
		return err
	}
	fmt.Printf("%d pods of %d bytes of JSON; after a collection, bytes for each pod (of its JSON)\n", podCount, size/podCount)
	for _, follower := range []struct{ name, kind, target string }{
		{"client-go, corev1.Pod", "client-go", api.URL},
		{"informerd, corev1.Pod", "pod", "unix:" + socket},
		{"informerd, json.RawMessage", "raw", "unix:" + socket},
		{"informerd, a struct of three fields", "fields", "unix:" + socket},
	} {
		var with, without usage
		if err := output(&with, "follow", follower.kind, follower.target); err != nil {
			return fmt.Errorf("%s: %w", follower.name, err)
		}
		if err := output(&without, "follow", "nothing", ""); err != nil {
			return err
		}
		if with.Objects != podCount {
			return fmt.Errorf("%s has %d objects", follower.name, with.Objects)
		}
		each := func(bytes, base uint64) float64 { return float64(bytes-base) / podCount }
		heap, resident := each(with.Heap, without.Heap), each(with.Resident, without.Resident)
		fmt.Printf("%-36s heap %6.0f (%.2f)  resident %6.0f (%.2f)  ready in %.1f s\n", follower.name,
			heap, heap*podCount/float64(size), resident, resident*podCount/float64(size), with.Ready.Seconds())
	}
	return nil
}

// awaitPods waits until informerd has read all pods.
func awaitPods(target string) error {
	client, err := informerd.NewClient(target, informerd.ClientOptions{})
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	pods := informerd.NewResource[json.RawMessage](client, "pods")
	_, err = pods.Until(ctx, informerd.UntilOptions{MetadataOnly: true}, fmt.Sprintf("count == %d", podCount))
	return err
}

// follow follows the pods until they are complete, and prints its memory.
func follow(arguments []string) error {
	kind, target := arguments[0], arguments[1]
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	began := time.Now()
	var count func() int
	var err error
	switch kind {
	case "nothing":
		count = func() int { return 0 }
	case "client-go":
		count, err = followKubernetes(ctx, target)
	case "pod":
		count, err = followInformerd[corev1.Pod](ctx, target)
	case "raw":
		count, err = followInformerd[json.RawMessage](ctx, target)
	case "fields":
		count, err = followInformerd[podFields](ctx, target)
	default:
		err = fmt.Errorf("there is no follower %q", kind)
	}
	if err != nil {
		return err
	}
	ready := time.Since(began)
	runtime.GC()
	debug.FreeOSMemory()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	resident, err := residentBytes()
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(usage{Objects: count(), Heap: stats.HeapAlloc, Resident: resident, Ready: ready})
}

func followInformerd[T any](ctx context.Context, target string) (count func() int, err error) {
	client, err := informerd.NewClient(target, informerd.ClientOptions{})
	if err != nil {
		return nil, err
	}
	informer, err := informerd.NewInformer[T](client, "pods", informerd.InformerOptions{})
	if err != nil {
		return nil, err
	}
	err = informer.AddIndexers(informerd.Indexers[T]{"namespace": func(o *informerd.Object[T]) ([]string, error) {
		return []string{o.Namespace}, nil
	}})
	if err != nil {
		return nil, err
	}
	registration := informer.AddEventHandler(informerd.ResourceEventHandlerFuncs[T]{AddFunc: func(*informerd.Object[T]) {}})
	informer.Start()
	for !registration.HasSynced() {
		if err := informer.WaitForCacheSync(ctx); err != nil {
			return nil, err
		}
		time.Sleep(time.Millisecond)
	}
	return informer.GetStore().Len, nil
}

func followKubernetes(ctx context.Context, target string) (count func() int, err error) {
	clientset, err := kubernetes.NewForConfig(&rest.Config{Host: target, QPS: -1})
	if err != nil {
		return nil, err
	}
	factory := informers.NewSharedInformerFactory(clientset, 0)
	informer := factory.Core().V1().Pods().Informer()
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) {}})
	if err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return nil, fmt.Errorf("not synced within 10 minutes")
	}
	return func() int { return len(informer.GetStore().ListKeys()) }, nil
}

// residentBytes returns the resident memory of this process.
func residentBytes() (uint64, error) {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	var size, resident uint64
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		return 0, err
	}
	return resident * uint64(os.Getpagesize()), nil
}

// apiServer answers a list and a watch of pods.
type apiServer struct{ pods []string }

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	query := r.URL.Query()
	if query.Get("watch") == "" {
		fmt.Fprintf(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"%d"},"items":[%s]}`, podCount, strings.Join(s.pods, ","))
		return
	}
	if query.Get("sendInitialEvents") == "true" {
		for _, pod := range s.pods {
			fmt.Fprintf(w, `{"type":"ADDED","object":%s}`+"\n", pod)
		}
		fmt.Fprintln(w, endOfInitialEvents)
	}
	if err := http.NewResponseController(w).Flush(); err != nil {
		panic(http.ErrAbortHandler)
	}
	<-r.Context().Done()
}

const endOfInitialEvents = `{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"20000","annotations":{"k8s.io/initial-events-end":"true"}}}}`

func writeEvents(path string, pods []string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	out := bufio.NewWriter(file)
	for _, pod := range pods {
		fmt.Fprintf(out, `{"type":"ADDED","object":%s}`+"\n", pod)
	}
	fmt.Fprintln(out, endOfInitialEvents)
	return out.Flush()
}

// pod returns a pod of a Deployment as an API server has it, without managedFields.
func pod(at int) string {
	app, revision := fmt.Sprintf("service-%d", at/20), fmt.Sprintf("%08x", uint32(at/20)*2_654_435_761)
	type m = map[string]any
	owner := m{
		"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app + "-" + revision, "controller": true, "blockOwnerDeletion": true,
		"uid": fmt.Sprintf("00000000-0000-4000-8000-%012x", at/20),
	}
	var environment []m
	for n := range 8 {
		environment = append(environment, m{"name": fmt.Sprintf("SETTING_%d", n), "value": fmt.Sprintf("value-%d-of-%s", n, app)})
	}
	probe := func(path string) m {
		return m{
			"httpGet": m{"path": path, "port": 8080, "scheme": "HTTP"}, "periodSeconds": 10, "timeoutSeconds": 1,
			"successThreshold": 1, "failureThreshold": 3,
		}
	}
	container := func(name string) m {
		return m{
			"name": name, "image": fmt.Sprintf("registry.example.com/team/%s/%s:1.%d.0", app, name, at%7),
			"ports": []m{{"name": "http", "containerPort": 8080, "protocol": "TCP"}}, "env": environment,
			"resources":      m{"requests": m{"cpu": "100m", "memory": "128Mi"}, "limits": m{"memory": "256Mi"}},
			"readinessProbe": probe("/readyz"), "livenessProbe": probe("/livez"),
			"volumeMounts":           []m{{"name": "config", "mountPath": "/etc/app", "readOnly": true}},
			"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File", "imagePullPolicy": "IfNotPresent",
		}
	}
	text, err := json.Marshal(m{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": m{
			"name": fmt.Sprintf("%s-%s-%05d", app, revision, at), "namespace": fmt.Sprintf("namespace-%d", at%50),
			"uid": fmt.Sprintf("00000000-0000-4000-9000-%012x", at), "resourceVersion": fmt.Sprint(at + 1),
			"creationTimestamp": "2026-01-01T00:00:00Z", "generateName": app + "-" + revision + "-",
			"labels":          m{"app": app, "pod-template-hash": revision, "team": fmt.Sprintf("team-%d", at%30)},
			"annotations":     m{"example.com/config-hash": strings.Repeat(revision, 8)},
			"ownerReferences": []m{owner},
		},
		"spec": m{
			"containers": []m{container("main"), container("sidecar")}, "nodeName": fmt.Sprintf("node-%d", at%200),
			"volumes":       []m{{"name": "config", "configMap": m{"name": app + "-config", "defaultMode": 420}}},
			"restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
			"serviceAccountName": "default", "serviceAccount": "default", "securityContext": m{}, "schedulerName": "default-scheduler",
			"priority": 0, "enableServiceLinks": true, "preemptionPolicy": "PreemptLowerPriority",
		},
		"status": m{
			"phase": "Running", "podIP": fmt.Sprintf("10.%d.%d.%d", at>>16&255, at>>8&255, at&255), "startTime": "2026-01-01T00:00:01Z",
			"conditions": []m{{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:09Z"}},
		},
	})
	if err != nil {
		panic(err)
	}
	return string(text)
}
