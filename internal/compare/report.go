package compare

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	texttemplate "text/template"
)

//go:embed report.txt
var textReport string

//go:embed report.html
var htmlReport string

// functions are what the templates of reports call.
var functions = map[string]any{
	"time": timeText,
	"side": func(text string) string { return cmp.Or(text, "-") },
	"cpu": func(s SideReport) string {
		switch {
		case s.CPUSeconds == nil:
			return "not exposed by both"
		case s.IdleCPUSeconds == nil:
			return fmt.Sprintf("%.2f s", *s.CPUSeconds)
		}
		return fmt.Sprintf("%.2f s, idle %.2f s", *s.CPUSeconds, *s.IdleCPUSeconds)
	},
	"bytes": func(n int64) string {
		switch {
		case n < 10<<10:
			return fmt.Sprintf("%d B", n)
		case n < 10<<20:
			return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
		}
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	},
	"ms": func(v float64) string { return fmt.Sprintf("%.1f ms", v) },
	"kind": func(q Result) string {
		if q.Range {
			return fmt.Sprintf("%s to %s by %s", timeText(q.StartMS), timeText(q.EndMS), seconds(q.StepMS)+"s")
		}
		return "at " + timeText(q.EndMS)
	},
	"verdict": func(q Result) string {
		switch {
		case q.NotCompared != "":
			return "not compared"
		case len(q.Differences) > 0:
			return "different"
		case q.SameBytes:
			return "same bytes"
		}
		return "same values"
	},
}

// Write writes the report in a format: text, json or html.
func (r *Report) Write(w io.Writer, format string) error {
	switch format {
	case "json":
		e := json.NewEncoder(w)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(r)
	case "html":
		return template.Must(template.New("report").Funcs(functions).Parse(htmlReport)).Execute(w, r)
	}
	return texttemplate.Must(texttemplate.New("report").Funcs(functions).Parse(textReport)).Execute(w, r)
}
