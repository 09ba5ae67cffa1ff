package house

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

var (
	inlineCode   = regexp.MustCompile("`[^`]*`")
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	htmlLink     = regexp.MustCompile(`(?:src|srcset|href)="([^"]+)"`)
	withScheme   = regexp.MustCompile(`^[a-z]+:`)
	heading      = regexp.MustCompile(`^#{1,6} +(.*)`)
	linkInText   = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// A relative link names a file of the repository, and its anchor a heading of that file.
func TestLinks_OfEveryDocumentResolve(t *testing.T) {
	checked := 0
	for _, doc := range documents(t) {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range proseLines(string(text)) {
			line = inlineCode.ReplaceAllString(line, "")
			for _, match := range append(markdownLink.FindAllStringSubmatch(line, -1), htmlLink.FindAllStringSubmatch(line, -1)...) {
				if withScheme.MatchString(match[1]) {
					continue
				}
				checked++
				if fault := brokenLink(doc, match[1]); fault != "" {
					t.Errorf("%s:%d: %s: %s", strings.TrimPrefix(doc, root+"/"), i+1, match[1], fault)
				}
			}
		}
	}
	if checked < 150 {
		t.Fatalf("only %d links found", checked)
	}
}

// documents returns the paths of all Markdown files.
func documents(t *testing.T) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		if d.IsDir() && (skipDir(filepath.ToSlash(rel), d.Name()) || strings.HasPrefix(filepath.ToSlash(rel), "bench/out")) {
			return filepath.SkipDir
		}
		if !d.IsDir() && filepath.Ext(path) == ".md" {
			paths = append(paths, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// proseLines returns the lines of a document. Lines of code blocks are empty.
func proseLines(text string) []string {
	lines := strings.Split(text, "\n")
	code := false
	for i, line := range lines {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		if fence {
			code = !code
		}
		if code || fence {
			lines[i] = ""
		}
	}
	return lines
}

// brokenLink returns the missing file or anchor of a link; "" for a valid link.
func brokenLink(doc, link string) string {
	path, anchor, _ := strings.Cut(link, "#")
	target := doc
	if path != "" {
		target = filepath.Join(filepath.Dir(doc), filepath.FromSlash(path))
	}
	text, err := os.ReadFile(target)
	if err != nil {
		if info, statErr := os.Stat(target); statErr != nil || !info.IsDir() || anchor != "" {
			return "no such file"
		}
		return ""
	}
	if anchor != "" && filepath.Ext(target) == ".md" && !anchorsOf(string(text))[anchor] {
		return "no such heading"
	}
	return ""
}

// anchorsOf returns the anchors of a document's headings, as GitHub makes them.
func anchorsOf(text string) map[string]bool {
	anchors, seen := map[string]bool{}, map[string]int{}
	for _, line := range proseLines(text) {
		match := heading.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		plain := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, strings.TrimSpace(linkInText.ReplaceAllString(match[1], "$1")))
		anchor := plain
		if n := seen[plain]; n > 0 {
			anchor += "-" + strconv.Itoa(n)
		}
		seen[plain]++
		anchors[anchor] = true
	}
	return anchors
}

func TestLinks_FaultsAreFound(t *testing.T) {
	const text = "# One\n## `Two` & [three](x)\n# One\n```\n# not a heading\n```\n"
	anchors := anchorsOf(text)
	for anchor, want := range map[string]bool{"one": true, "one-1": true, "two--three": true, "not-a-heading": false, "four": false} {
		if anchors[anchor] != want {
			t.Errorf("%s: %v", anchor, anchors[anchor])
		}
	}
	readme := filepath.Join(root, "README.md")
	for link, broken := range map[string]bool{"docs": false, "docs/README.md": false, "docs/README.md#symptoms": false, "docs/README.md#nothing": true, "docs/absent.md": true, "docs#x": true} {
		if (brokenLink(readme, link) != "") != broken {
			t.Errorf("%s: %q", link, brokenLink(readme, link))
		}
	}
}
