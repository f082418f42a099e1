//go:build tools

// Package tools pins the programs that the test bed builds, so that go.mod and go.sum hold all they need.
package tools

import (
	_ "sigs.k8s.io/kwok/cmd/kwok"
)
