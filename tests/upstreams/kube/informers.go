// The informers of client-go, unchanged, over a server that speaks Kubernetes: typed, dynamic and metadata. For each line of stdin
// they answer with the state of each store.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// store is the state of an informer: the versions of its objects, how often it has listed, and the number of its handlers' calls.
type store struct {
	Objects                map[string]string
	Lists                  int64
	Adds, Updates, Deletes int64
}

// counting counts the requests for all objects: a list, or a watch that begins with them.
type counting struct {
	http.RoundTripper
	lists *atomic.Int64
}

func (c counting) RoundTrip(request *http.Request) (*http.Response, error) {
	query := request.URL.Query()
	// The detector of inconsistencies lists exactly the version that a watch has begun with.
	isDetector := query.Get("resourceVersionMatch") == "Exact"
	if (query.Get("watch") == "" && !isDetector) || query.Get("sendInitialEvents") == "true" {
		c.lists.Add(1)
	}
	return c.RoundTripper.RoundTrip(request)
}

func watchConfigMaps(host string) {
	lists := map[string]*atomic.Int64{"typed": {}, "dynamic": {}, "metadata": {}}
	config := func(name string) *rest.Config {
		config := &rest.Config{Host: host, QPS: 1000, Burst: 1000}
		config.Wrap(func(inner http.RoundTripper) http.RoundTripper { return counting{inner, lists[name]} })
		return config
	}
	ctx := context.Background()
	resource := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	all := map[string]cache.SharedIndexInformer{
		"typed":    informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(config("typed")), 0).Core().V1().ConfigMaps().Informer(),
		"dynamic":  dynamicinformer.NewDynamicSharedInformerFactory(dynamic.NewForConfigOrDie(config("dynamic")), 0).ForResource(resource).Informer(),
		"metadata": metadatainformer.NewSharedInformerFactory(metadata.NewForConfigOrDie(config("metadata")), 0).ForResource(resource).Informer(),
	}
	calls := map[string]*[3]atomic.Int64{}
	for name, informer := range all {
		count := &[3]atomic.Int64{}
		calls[name] = count
		informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { count[0].Add(1) },
			UpdateFunc: func(any, any) { count[1].Add(1) },
			DeleteFunc: func(any) { count[2].Add(1) },
		})
		go informer.Run(ctx.Done())
	}
	for _, informer := range all {
		cache.WaitForCacheSync(ctx.Done(), informer.HasSynced)
	}
	out := json.NewEncoder(os.Stdout)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		stores := map[string]store{}
		for name, informer := range all {
			objects := map[string]string{}
			for _, item := range informer.GetStore().List() {
				object := item.(metav1.Object)
				objects[object.GetNamespace()+"/"+object.GetName()] = object.GetResourceVersion()
			}
			count := calls[name]
			stores[name] = store{objects, lists[name].Load(), count[0].Load(), count[1].Load(), count[2].Load()}
		}
		out.Encode(stores)
	}
}
