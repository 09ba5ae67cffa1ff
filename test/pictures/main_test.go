package main

import (
	"image"
	"image/color"
	"image/gif"
	"image/png"
	"os"
	"path/filepath"
	"testing"
)

// A second frame has only what differs from the first one; screenshots that no document shows are not copied.
func TestRun_JoinsFramesAndCopiesPictures(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	frame := image.NewRGBA(image.Rect(0, 0, 20, 10))
	write := func(name string) {
		file, err := os.Create(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if err := png.Encode(file, frame); err != nil {
			t.Fatal(err)
		}
	}
	write("why-light-0-150.png")
	write("query-light.png")
	write("other-light.png")
	frame.Set(3, 4, color.RGBA{200, 0, 0, 255})
	frame.Set(5, 7, color.RGBA{200, 0, 0, 255})
	write("why-light-1-12.png")
	write("why-light-10-7.png")
	if err := run(from, to); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(filepath.Join(to, "why-light.gif"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	got, err := gif.DecodeAll(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Image) != 3 || got.Delay[0] != 150 || got.Delay[1] != 12 || got.Delay[2] != 7 {
		t.Fatalf("%d frames, shown for %v", len(got.Image), got.Delay)
	}
	if b := got.Image[1].Bounds(); b != image.Rect(3, 4, 6, 8) {
		t.Errorf("the second frame has %v", b)
	}
	if r, g, b, _ := got.Image[1].At(5, 7).RGBA(); r>>8 != 200 || g != 0 || b != 0 {
		t.Errorf("the changed pixel is %d %d %d", r>>8, g>>8, b>>8)
	}
	names, err := filepath.Glob(filepath.Join(to, "*.png"))
	if err != nil || len(names) != 1 || filepath.Base(names[0]) != "query-light.png" {
		t.Errorf("copied %q, %v", names, err)
	}
}
