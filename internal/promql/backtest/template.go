package backtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	texttemplate "text/template"
	"text/template/parse"

	"github.com/grafana/regexp"
	"github.com/prometheus/prometheus/model/labels"
	promrules "github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/template"
)

// text/template has no limit and does not look at a context, and a template here may come from any client.
const (
	templateMax  = 16 << 10 // bytes of a template
	functionMax  = 64 << 10 // bytes of the arguments of a function whose result can be longer than they are
	expansionMax = 64 << 20 // bytes that loops and calls of a template may write; an upper bound is counted
)

var (
	errExpansion = errors.New("the template writes or loops too much for a backtest")
	wide         = regexp.MustCompile(`%[^a-zA-Z%]*(\d{4}|\*)`) // widths that printf would fill
)

// bounded returns a template whose loops and calls ask the function more whether they may go on.
func bounded(name, text string) string {
	if !strings.Contains(text, "range") && !strings.Contains(text, "template") && !strings.Contains(text, "block") {
		return text
	}
	t, trees, loops := parse.New(name), map[string]*parse.Tree{}, false
	t.Mode = parse.SkipFuncCheck
	if _, err := t.Parse(text, "", "", trees); err != nil {
		return text // expansion fails with the error
	}
	more := &parse.TextNode{NodeType: parse.NodeText, Text: []byte("{{more}}")}
	var visit func(*parse.ListNode)
	branch := func(n *parse.BranchNode) {
		visit(n.List)
		visit(n.ElseList)
	}
	visit = func(list *parse.ListNode) {
		if list == nil {
			return
		}
		for _, node := range list.Nodes {
			switch n := node.(type) {
			case *parse.TextNode: // a brace in front of an action would open another action
				if cut, ok := strings.CutSuffix(string(n.Text), "{"); ok {
					n.Text = []byte(cut + `{{"{"}}`)
				}
			case *parse.IfNode:
				branch(&n.BranchNode)
			case *parse.WithNode:
				branch(&n.BranchNode)
			case *parse.RangeNode:
				loops = true
				branch(&n.BranchNode)
				n.List.Nodes = append([]parse.Node{more}, n.List.Nodes...)
			case *parse.TemplateNode:
				loops = true
			}
		}
	}
	var out strings.Builder
	visit(t.Root)
	for defined, tree := range trees {
		if tree != t {
			visit(tree.Root)
			fmt.Fprintf(&out, "{{define %q}}{{more}}%s{{end}}", defined, tree.Root)
		}
	}
	if !loops {
		return text
	}
	return out.String() + t.Root.String()
}

// limit replaces functions of a template, whose text is known, by functions with limits.
func limit(ctx context.Context, te *template.Expander, text string) {
	left, longest := expansionMax, 0
	check := func(times int, args ...any) error {
		n := 0
		for _, arg := range args {
			s, ok := arg.(string)
			if !ok {
				s = fmt.Sprint(arg)
			}
			if n += len(s) + 1; n*times > functionMax {
				return errExpansion
			}
		}
		longest = max(longest, 4*n*times)
		return nil
	}
	funcs := texttemplate.FuncMap{
		"more": func() (string, error) {
			if left -= 256 + len(text) + longest*strings.Count(text, "{{"); left < 0 {
				return "", errExpansion
			}
			return "", ctx.Err()
		},
		"printf": func(format string, args ...any) (string, error) {
			if wide.MatchString(strings.ReplaceAll(format, "%%", "")) {
				return "", errExpansion
			}
			if err := check(1+strings.Count(format, "%"), append([]any{format}, args...)...); err != nil {
				return "", err
			}
			return fmt.Sprintf(format, args...), nil
		},
		"reReplaceAll": func(pattern, with, text string) (string, error) {
			if err := check(1+len(with), text); err != nil {
				return "", err
			}
			re, err := regexp.Compile(pattern)
			if err != nil {
				panic(err) // as Prometheus' function does
			}
			return re.ReplaceAllString(text, with), nil
		},
	}
	for name, f := range map[string]func(...any) string{"print": fmt.Sprint, "println": fmt.Sprintln,
		"html": texttemplate.HTMLEscaper, "js": texttemplate.JSEscaper, "urlquery": texttemplate.URLQueryEscaper} {
		funcs[name] = func(args ...any) (string, error) {
			if err := check(1, args...); err != nil {
				return "", err
			}
			return f(args...), nil
		}
	}
	te.Funcs(funcs)
}

// checkTemplates reports a template that is too long.
func checkTemplates(g *promrules.Group, a *promrules.AlertingRule) (err error) {
	for _, set := range []labels.Labels{a.Labels(), a.Annotations()} {
		set.Range(func(l labels.Label) {
			if len(l.Value) > templateMax && strings.Contains(l.Value, "{{") {
				err = fmt.Errorf("%w: group %q, rule %q: the template %q has %d bytes, at most %d are allowed", ErrLimit,
					g.Name(), a.Name(), l.Name, len(l.Value), templateMax)
			}
		})
	}
	return err
}
