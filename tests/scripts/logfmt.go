// Takes lines of logfmt and prints each as a JSON list of its names and values, in their order. A name without a value
// has null. The parser is the one that log collectors in Go use; a line that it refuses ends this with 1.
package main

import (
	"encoding/json"
	"os"

	"github.com/go-logfmt/logfmt"
)

func main() {
	decoder := logfmt.NewDecoder(os.Stdin)
	lines := json.NewEncoder(os.Stdout)
	for decoder.ScanRecord() {
		pairs := [][2]any{}
		for decoder.ScanKeyval() {
			pair := [2]any{string(decoder.Key()), nil}
			if value := decoder.Value(); value != nil {
				pair[1] = string(value)
			}
			pairs = append(pairs, pair)
		}
		if decoder.Err() != nil {
			break
		}
		lines.Encode(pairs)
	}
	if decoder.Err() != nil {
		os.Stderr.WriteString(decoder.Err().Error() + "\n")
		os.Exit(1)
	}
}
