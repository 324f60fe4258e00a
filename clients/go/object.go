// SPDX-License-Identifier: Apache-2.0

package informerd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"mime"
	"strings"
	"unique"

	"informerd/clients/go/informerdv1"
)

// Object is an object of a resource, at one version. It is shared: do not change it.
type Object[T any] struct {
	// Namespace is empty when the object has none.
	Namespace string
	// Name is together with the namespace the key.
	Name string
	// UID is empty when the source has none. Another UID under the same key is another object.
	UID string
	// ResourceVersion is the object's own version, which is no version to resume from.
	ResourceVersion string
	// Labels are metadata.labels of the body.
	Labels map[string]string
	// APIVersion is for example "apps/v1"; empty when the body has none.
	APIVersion string
	// Kind is for example "Deployment"; empty when the body has none.
	Kind string
	// MediaType is that of the body, for example "application/json".
	MediaType string
	// Body is the decoded body; the zero value without a body, and if it could not be decoded. Numbers in values of type [any]
	// are of type [json.Number], which is exact.
	Body T
	// DecodeError is the reason why the body could not be decoded into the type, if so.
	DecodeError error

	// digest stands for the bytes of the body; 0 without a body.
	digest uint64
}

type objectKey struct{ namespace, name string }

// Key returns "namespace/name", or the name alone if the object has no namespace.
func (o *Object[T]) Key() string { return o.key().String() }

func (o *Object[T]) key() objectKey { return objectKey{o.Namespace, o.Name} }

func (k objectKey) String() string {
	if k.namespace == "" {
		return k.name
	}
	return k.namespace + "/" + k.name
}

// digestSeed is random, so that no server can make two bodies look the same.
var digestSeed = maphash.MakeSeed()

// newObject converts an object; base is the object in the store under the same key, if any, of which it shares what is equal.
func newObject[T any](from *informerdv1.Object, base *Object[T]) (*Object[T], error) {
	if from.GetName() == "" {
		return nil, contractError("object without a name")
	}
	o := &Object[T]{
		Namespace:       intern(from.GetNamespace()),
		Name:            from.GetName(),
		UID:             from.GetUid(),
		ResourceVersion: from.GetResourceVersion(),
		Labels:          from.GetLabels(),
		APIVersion:      intern(from.GetApiVersion()),
		Kind:            intern(from.GetKind()),
		MediaType:       intern(from.GetMediaType()),
	}
	if base != nil {
		o.Namespace, o.Name = base.Namespace, base.Name
		if o.UID == base.UID {
			o.UID = base.UID
		}
		if maps.Equal(o.Labels, base.Labels) {
			o.Labels = base.Labels
		}
	}
	var raw []byte
	switch body := from.GetBody().(type) {
	case nil:
		return o, nil
	case *informerdv1.Object_Raw:
		raw = body.Raw
	default:
		return nil, contractError("body in another format than the requested one")
	}
	o.digest = max(maphash.Bytes(digestSeed, raw), 1)
	if base != nil && base.digest == o.digest {
		o.Body, o.DecodeError = base.Body, base.DecodeError
		return o, nil
	}
	o.DecodeError = decode(raw, o.MediaType, &o.Body)
	return o, nil
}

// isSame returns true if two states of a key are one object in the same state. Versions count only where there is no body to
// compare: another lineage gives the same objects other versions.
func (o *Object[T]) isSame(other *Object[T]) bool {
	return o.UID == other.UID && o.digest == other.digest && maps.Equal(o.Labels, other.Labels) &&
		(o.digest != 0 || o.ResourceVersion == other.ResourceVersion)
}

// decode decodes a body; into [json.RawMessage] and []byte it goes as it is.
func decode[T any](raw []byte, mediaType string, into *T) error {
	switch into := any(into).(type) {
	case *json.RawMessage:
		*into = raw
		return nil
	case *[]byte:
		*into = raw
		return nil
	}
	if !isJSON(mediaType) {
		return fmt.Errorf("media type %q is not JSON", mediaType)
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	if err := decoder.Decode(into); err != nil {
		*into = *new(T)
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		*into = *new(T)
		return errors.New("data after the end of the JSON value")
	}
	return nil
}

// isJSON returns true for JSON, also if the type is not stated.
func isJSON(mediaType string) bool {
	if mediaType == "" || mediaType == "application/json" {
		return true
	}
	mediaType, _, err := mime.ParseMediaType(mediaType)
	return err == nil && (mediaType == "application/json" || strings.HasSuffix(mediaType, "+json"))
}

// intern returns the one copy of a string that many objects have.
func intern(s string) string {
	if s == "" {
		return ""
	}
	return unique.Make(s).Value()
}
