// The informers of client-go, unchanged, over a server that speaks Kubernetes: typed, dynamic and metadata. For each line of stdin
// they answer with the state of each store.
package main

import (
	"bufio"
	"context"
	"encoding/json"
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

// store is the state of an informer: the versions of its objects, and the number of its handlers' calls.
type store struct {
	Objects                map[string]string
	Adds, Updates, Deletes int64
}

func watchConfigMaps(host string) {
	config := &rest.Config{Host: host, QPS: 1000, Burst: 1000}
	ctx := context.Background()
	resource := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	all := map[string]cache.SharedIndexInformer{
		"typed":    informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(config), 0).Core().V1().ConfigMaps().Informer(),
		"dynamic":  dynamicinformer.NewDynamicSharedInformerFactory(dynamic.NewForConfigOrDie(config), 0).ForResource(resource).Informer(),
		"metadata": metadatainformer.NewSharedInformerFactory(metadata.NewForConfigOrDie(config), 0).ForResource(resource).Informer(),
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
		go informer.RunWithContext(ctx)
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
			stores[name] = store{objects, count[0].Load(), count[1].Load(), count[2].Load()}
		}
		out.Encode(stores)
	}
}
