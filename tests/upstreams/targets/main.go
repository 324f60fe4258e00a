// The discovery of targets of Prometheus, as it is, in a program of its own: it takes the configurations, and for each line of stdin
// it prints the groups of each.
package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/discovery/kubernetes"
	"go.yaml.in/yaml/v2"
)

// group is a targetgroup.Group, whose own JSON has only the addresses of its targets.
type group struct {
	Source  string
	Labels  model.LabelSet
	Targets []model.LabelSet
}

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(text string) error {
	var read map[string]*kubernetes.SDConfig
	if err := yaml.UnmarshalStrict([]byte(text), &read); err != nil {
		return err
	}
	configs := map[string]discovery.Configs{}
	for name, config := range read {
		configs[name] = discovery.Configs{config}
	}
	registry := prometheus.NewRegistry()
	metrics, err := discovery.CreateAndRegisterSDMetrics(registry)
	if err != nil {
		return err
	}
	manager := discovery.NewManager(context.Background(), nil, registry, metrics)
	if err := manager.ApplyConfig(configs); err != nil {
		return err
	}
	go manager.Run()
	var mutex sync.Mutex
	latest := map[string][]group{}
	go func() {
		for update := range manager.SyncCh() {
			sorted := map[string][]group{}
			for name, groups := range update {
				sorted[name] = []group{}
				for _, g := range groups {
					sorted[name] = append(sorted[name], group{g.Source, g.Labels, g.Targets})
				}
				slices.SortFunc(sorted[name], func(a, b group) int { return cmp.Compare(a.Source, b.Source) })
			}
			mutex.Lock()
			latest = sorted
			mutex.Unlock()
		}
	}()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		mutex.Lock()
		answer, err := json.Marshal(latest)
		mutex.Unlock()
		if err != nil {
			return err
		}
		fmt.Println(string(answer))
	}
	return nil
}
