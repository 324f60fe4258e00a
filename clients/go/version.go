// SPDX-License-Identifier: Apache-2.0

package informerd

import (
	"cmp"
	"strings"
)

// compareVersions compares resource versions: decimals by their number, `<lineage>.<n>` by n within one lineage. Other versions
// have no order: ok is false.
func compareVersions(a, b string) (order int, ok bool) {
	lineageA, numberA, okA := splitVersion(a)
	lineageB, numberB, okB := splitVersion(b)
	if !okA || !okB || lineageA != lineageB {
		return 0, false
	}
	// Without leading zeros, the longer number is the larger one.
	return cmp.Or(cmp.Compare(len(numberA), len(numberB)), cmp.Compare(numberA, numberB)), true
}

// splitVersion splits a version into its lineage, empty for decimals, and its number without leading zeros.
func splitVersion(version string) (lineage, number string, ok bool) {
	number = version
	if dot := strings.LastIndexByte(version, '.'); dot >= 0 {
		lineage, number = version[:dot], version[dot+1:]
		if lineage == "" {
			return "", "", false
		}
	}
	if number == "" {
		return "", "", false
	}
	for i := range len(number) {
		if number[i] < '0' || number[i] > '9' {
			return "", "", false
		}
	}
	return lineage, strings.TrimLeft(number, "0"), true
}

// isLower returns true if a version is certainly lower than another one.
func isLower(version, than string) bool {
	order, ok := compareVersions(version, than)
	return ok && order < 0
}
