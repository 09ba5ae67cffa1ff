package httpapi

import "net/http"

// features returns the parts of the API that this server has, in Prometheus' format: names by category. The web UI
// reads the category "ferula", and hides pages without data.
func (a *API) features(*http.Request) (response, *apiError) {
	o := &a.opts
	ferula := map[string]bool{
		"alertmanagers": o.Rules,
		"alerts":        o.Stores != nil || o.Rules,
		"blocks":        o.TSDB,
		"config":        o.Config != nil,
		"export":        o.Export != nil,
		"flames":        o.Flames != nil,
		"notifications": o.Notifications,
		"profiles":      o.Profiles,
		"queries":       true,
		"rules":         o.Stores != nil || o.Rules,
		"sd":            o.Targets != nil,
		"stores":        o.Stores != nil,
		"targets":       o.Targets != nil || o.Stores != nil,
		"tsdb":          o.TSDB,
	}
	api := map[string]bool{
		"remote_read":   o.RemoteRead != nil,
		"remote_write":  o.RemoteWrite != nil,
		"query_stats":   true,
		"query_limit":   true,
		"format_query":  true,
		"parse_query":   true,
		"query_timeout": true,
	}
	return response{write: func(s *stream) { s.value(map[string]any{"api": api, "ferula": ferula}) }}, nil
}
