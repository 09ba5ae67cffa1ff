// Package promjson encodes, scans and decodes the JSON of the Prometheus HTTP API.
package promjson
