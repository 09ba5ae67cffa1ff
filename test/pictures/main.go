// Command pictures puts the pictures of README.md into docs/img: it copies screenshots and joins those named
// why-SCHEME-NUMBER-HUNDREDTHS.png, which are shown for as many hundredths of a second, into why-SCHEME.gif.
// `make pictures` starts it with the directory of the screenshots and the directory of the pictures.
package main

import (
	"cmp"
	"fmt"
	"image"
	"image/color"
	"image/gif"
	"image/png"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// kept are the screenshots that documents show.
var kept = regexp.MustCompile(`^(backtest|query|stores)-(light|dark)\.png$`)

var frameName = regexp.MustCompile(`^why-(light|dark)-(\d+)-(\d+)\.png$`)

type frame struct {
	path               string
	number, hundredths int
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: pictures SCREENSHOTS PICTURES")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

func run(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	frames := map[string][]frame{}
	for _, e := range entries {
		path := filepath.Join(from, e.Name())
		if kept.MatchString(e.Name()) {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(to, e.Name()), text, 0o644); err != nil {
				return err
			}
		}
		if found := frameName.FindStringSubmatch(e.Name()); found != nil {
			number, _ := strconv.Atoi(found[2])
			hundredths, _ := strconv.Atoi(found[3])
			frames[found[1]] = append(frames[found[1]], frame{path, number, hundredths})
		}
	}
	for scheme, of := range frames {
		slices.SortFunc(of, func(a, b frame) int { return cmp.Compare(a.number, b.number) })
		if err := animate(of, filepath.Join(to, "why-"+scheme+".gif")); err != nil {
			return err
		}
	}
	return nil
}

// animate writes the frames as a GIF. Each frame after the first has only the rectangle that differs from the one before.
func animate(frames []frame, name string) error {
	var pictures []image.Image
	for _, f := range frames {
		picture, err := read(f.path)
		if err != nil {
			return err
		}
		pictures = append(pictures, picture)
	}
	colours := paletteOf(pictures)
	index := map[color.RGBA]uint8{}
	out := gif.GIF{}
	for i, picture := range pictures {
		changed := picture.Bounds()
		if i > 0 {
			changed = difference(pictures[i-1], picture)
		}
		part := image.NewPaletted(changed, colours)
		for y := changed.Min.Y; y < changed.Max.Y; y++ {
			for x := changed.Min.X; x < changed.Max.X; x++ {
				c := colourAt(picture, x, y)
				at, ok := index[c]
				if !ok {
					at = uint8(colours.Index(c))
					index[c] = at
				}
				part.SetColorIndex(x, y, at)
			}
		}
		out.Image = append(out.Image, part)
		out.Delay = append(out.Delay, frames[i].hundredths)
		out.Disposal = append(out.Disposal, gif.DisposalNone)
	}
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := gif.EncodeAll(file, &out); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}

func read(path string) (image.Image, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return png.Decode(file)
}

func colourAt(picture image.Image, x, y int) color.RGBA {
	return color.RGBAModel.Convert(picture.At(x, y)).(color.RGBA)
}

// paletteOf returns the 256 colours that most pixels have: a page has few, and the others are edges of letters.
func paletteOf(pictures []image.Image) color.Palette {
	count := map[color.RGBA]int{}
	for _, p := range pictures {
		for y := p.Bounds().Min.Y; y < p.Bounds().Max.Y; y++ {
			for x := p.Bounds().Min.X; x < p.Bounds().Max.X; x++ {
				count[colourAt(p, x, y)]++
			}
		}
	}
	var all []color.RGBA
	for c := range count {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b color.RGBA) int {
		return cmp.Or(count[b]-count[a], cmp.Compare(a.R, b.R), cmp.Compare(a.G, b.G), cmp.Compare(a.B, b.B))
	})
	var colours color.Palette
	for _, c := range all[:min(256, len(all))] {
		colours = append(colours, c)
	}
	return colours
}

// difference is the rectangle in which two pictures of the same size differ; at least one pixel, which a GIF needs.
func difference(a, b image.Image) image.Rectangle {
	changed := image.Rectangle{}
	for y := b.Bounds().Min.Y; y < b.Bounds().Max.Y; y++ {
		for x := b.Bounds().Min.X; x < b.Bounds().Max.X; x++ {
			if colourAt(a, x, y) != colourAt(b, x, y) {
				changed = changed.Union(image.Rect(x, y, x+1, y+1))
			}
		}
	}
	if changed.Empty() {
		return image.Rect(0, 0, 1, 1)
	}
	return changed
}
