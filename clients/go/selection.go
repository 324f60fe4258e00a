// SPDX-License-Identifier: Apache-2.0

package informerd

import (
	"fmt"
	"math/big"
	"strings"

	"informerd/clients/go/informerdv1"
)

// Selection selects objects of a resource: those that all of its fields select. The zero value selects everything.
type Selection struct {
	// Namespace selects one namespace; empty = all. For several, use Index with the name "namespace".
	Namespace string
	// Name selects one name; empty = all.
	Name string
	// LabelSelector has Kubernetes' syntax: "app=web,tier in (a,b),!canary".
	LabelSelector string
	// FieldSelector has requirements on scalars: "spec.nodeName=n1,status.phase!=Running".
	FieldSelector string
	// Expression is CEL over `object`, the JSON body.
	Expression string
	// Index selects the objects under one of some values of an index of the server.
	Index *IndexMatch
	// Shard selects a part of the resource.
	Shard *Shard
}

// IndexMatch selects objects by an index of the server.
type IndexMatch struct {
	// Name is the name of the index; every resource has "namespace".
	Name string
	// Values are between 1 and 256.
	Values []string
}

// Shard selects the objects whose hash lies in a range, for fleets of workers that divide a resource. [ShardOf] makes one.
type Shard struct {
	// Key is "uid", "namespace", "key" or the path of a scalar: what the hash is of.
	Key string
	// Ranges are between 1 and 64.
	Ranges []ShardRange
}

// ShardRange is a half-open range of hashes.
type ShardRange struct {
	// Start is the first hash.
	Start uint64
	// End is the hash after the last one; 0 = 2^64.
	End uint64
}

// ShardOf returns shard i of n, counted from 0, over the hashes of a key. It panics unless i lies in [0, n).
func ShardOf(key string, i, n int) *Shard {
	if i < 0 || i >= n {
		panic(fmt.Sprintf("informerd: there is no shard %d of %d", i, n))
	}
	bound := func(i int) uint64 {
		of := new(big.Int).Lsh(big.NewInt(int64(i)), 64)
		// 2^64, the end of the last shard, becomes 0.
		return of.Quo(of, big.NewInt(int64(n))).Uint64()
	}
	return &Shard{Key: key, Ranges: []ShardRange{{Start: bound(i), End: bound(i + 1)}}}
}

// View is the part of each body that the server sends.
type View struct {
	// Fields are paths to keep, for example "metadata.labels" or "status.podIPs[].ip"; none = everything.
	Fields []string
	// Drop are paths to leave out of what Fields keeps.
	Drop []string
	// OnlyIfChanged suppresses changes outside of the view. Only informers use it.
	OnlyIfChanged bool
	// Name is a view by name, in place of Fields and Drop: "@metadata", "@no-status", "@no-managed-fields".
	Name string
}

// Policy is the server's action when the queue of an informer is full.
type Policy int

// Policies. An informer misses nothing under any of them: after a loss under PolicyDrop it fetches the lost events.
const (
	// PolicyDefault is the policy that the server has configured.
	PolicyDefault Policy = iota
	// PolicyDrop drops this client's events.
	PolicyDrop
	// PolicyBlock makes the resource wait for this client, within limits.
	PolicyBlock
	// PolicyReplay serves a lagging client from the history.
	PolicyReplay
	// PolicyCoalesce merges the changes of each object while the client lags.
	PolicyCoalesce
)

// Cause is the reason of a deletion.
type Cause int32

// Causes.
const (
	// CauseDeleted: the object was deleted.
	CauseDeleted = Cause(informerdv1.Cause_CAUSE_UNSPECIFIED)
	// CauseLeftSelection: the object exists, and is no longer selected.
	CauseLeftSelection = Cause(informerdv1.Cause_CAUSE_LEFT_SELECTION)
	// CauseInferred: the deletion itself was missed; the object is the last known state.
	CauseInferred = Cause(informerdv1.Cause_CAUSE_INFERRED)
	// CauseNotServed: the object exists, and the server cannot serve it, usually because it has become too large. A controller
	// must not remove what belongs to it.
	CauseNotServed = Cause(informerdv1.Cause_CAUSE_NOT_SERVED)
	// CauseExpired: the source has not reported the object for the resource's ttl.
	CauseExpired = Cause(informerdv1.Cause_CAUSE_EXPIRED)
)

// String returns for example "INFERRED".
func (c Cause) String() string {
	if c == CauseDeleted {
		return "DELETED"
	}
	return strings.TrimPrefix(informerdv1.Cause(c).String(), "CAUSE_")
}

func (s *Shard) proto() *informerdv1.Shard {
	if s == nil {
		return nil
	}
	shard := &informerdv1.Shard{Key: s.Key}
	for _, r := range s.Ranges {
		shard.Ranges = append(shard.Ranges, &informerdv1.ShardRange{Start: r.Start, End: r.End})
	}
	return shard
}

func (m *IndexMatch) proto() *informerdv1.IndexMatch {
	if m == nil {
		return nil
	}
	return &informerdv1.IndexMatch{Name: m.Name, Values: append([]string(nil), m.Values...)}
}

func (v *View) proto() *informerdv1.View {
	if v == nil {
		return nil
	}
	return &informerdv1.View{
		Fields:        append([]string(nil), v.Fields...),
		Drop:          append([]string(nil), v.Drop...),
		OnlyIfChanged: v.OnlyIfChanged,
		Name:          v.Name,
	}
}

func (s *Selection) watchRequest(resource string, view *View, metadataOnly bool) *informerdv1.WatchRequest {
	return &informerdv1.WatchRequest{
		Resource:      resource,
		Namespace:     s.Namespace,
		Name:          s.Name,
		LabelSelector: s.LabelSelector,
		FieldSelector: s.FieldSelector,
		Expression:    s.Expression,
		Index:         s.Index.proto(),
		Shard:         s.Shard.proto(),
		View:          view.proto(),
		Format:        format(metadataOnly),
		// Not decided by the server's capabilities: one without batches ignores it.
		BatchInitialEvents: true,
	}
}

// fieldSelectorWithName returns the field selector with a requirement for the name: List and ByIndex have no field for it.
func (s *Selection) fieldSelectorWithName() string {
	if s.Name == "" {
		return s.FieldSelector
	}
	name := "metadata.name=" + strings.NewReplacer(`\`, `\\`, `,`, `\,`, `=`, `\=`).Replace(s.Name)
	if s.FieldSelector == "" {
		return name
	}
	return s.FieldSelector + "," + name
}

func format(metadataOnly bool) informerdv1.PayloadFormat {
	if metadataOnly {
		return informerdv1.PayloadFormat_PAYLOAD_FORMAT_METADATA
	}
	return informerdv1.PayloadFormat_PAYLOAD_FORMAT_RAW
}
