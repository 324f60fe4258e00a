// SPDX-License-Identifier: Apache-2.0

// Package informerd is a client of informerd: informers whose local store equals the server's, and the plain calls.
//
// An [Informer] follows one resource. It looks like an informer of client-go: event handlers, indexers, a store, HasSynced and
// WaitForCacheSync. It resumes its watch after every interruption, compares where it has to list again, and reports how fresh
// its store is:
//
//	client, err := informerd.NewClient("127.0.0.1:50051", informerd.ClientOptions{})
//	pods, err := informerd.NewInformer[Pod](client, "pods", informerd.InformerOptions{})
//	pods.AddEventHandler(informerd.ResourceEventHandlerFuncs[Pod]{AddFunc: func(pod *informerd.Object[Pod]) { … }})
//	err = pods.Run(ctx)
//
// The type parameter is what the JSON bodies are decoded into: a struct with the fields that the program reads, [any], or
// [encoding/json.RawMessage] for the bytes themselves.
//
// [Resource] has the calls List, Get and ByIndex, and Until, which waits. All other calls are in the generated package
// informerdv1, which [Client.Service] gives access to.
//
// Everything here is safe for concurrent use. Objects are shared between the store, handlers and callers: do not change them.
package informerd
