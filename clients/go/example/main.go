package main

import (
	"context"
	"fmt"
	"log"
	"os"

	informerd "informerd/clients/go"
)

type Pod struct{ Spec struct{ NodeName string } }

func main() {
	client, err := informerd.NewClient(os.Args[1], informerd.ClientOptions{})
	if err != nil {
		log.Fatal(err)
	}
	pods, err := informerd.NewInformer[Pod](client, "pods", informerd.InformerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	pods.AddEventHandler(informerd.ResourceEventHandlerFuncs[Pod]{
		AddFunc:    func(pod *informerd.Object[Pod]) { fmt.Println("+", pod.Key(), pod.Body.Spec.NodeName) },
		UpdateFunc: func(_, pod *informerd.Object[Pod]) { fmt.Println("~", pod.Key(), pod.Body.Spec.NodeName) },
		DeleteFunc: func(pod *informerd.Object[Pod], cause informerd.Cause) { fmt.Println("-", pod.Key(), cause) },
	})
	log.Fatal(pods.Run(context.Background()))
}
