package columns

import (
	"math"
	"math/bits"

	"github.com/prometheus/prometheus/promql"
)

// errTooMany is Prometheus' error for a query over its limit of samples.
const errTooMany = promql.ErrTooManySamples("query execution")

// account counts the samples that Prometheus' engine would hold in memory at this point of the evaluation. The limit of
// samples and the peak in the statistics use these counts. evaluation.hold counts the values that this engine holds.
type account struct {
	current, peak, limit int
}

// touch counts n samples that are held temporarily, in addition to a.current. It returns errTooMany if all these
// samples exceed the limit.
func (a *account) touch(n int) error {
	if n += a.current; n > a.peak {
		a.peak = n
	}
	if n > a.limit {
		return errTooMany
	}
	return nil
}

func (a *account) add(n int) error {
	err := a.touch(n)
	a.current += n
	return err
}

// replay adds the counts of another account, which began at 0.
func (a *account) replay(b *account) error {
	err := a.touch(b.peak)
	a.current += b.current
	return err
}

// stepCounts counts the samples of an operator that Prometheus evaluates step by step (rangeEval): the input and the
// output of each step.
type stepCounts struct {
	before  int     // samples held before the operands were evaluated
	fullIn  int     // number of input series with a sample at every step, which in does not count
	in, out []int32 // samples of the input and of the output, by step
	less    int     // difference between the sizes of the output's histograms in vectors and in series
}

func (ev *evaluation) newStepCounts() *stepCounts {
	return &stepCounts{before: ev.acct.current, in: make([]int32, ev.steps), out: make([]int32, ev.steps)}
}

// countInto adds 1 to n[i] for each step i in has.
func countInto(n []int32, has bitmap) {
	for w, word := range has {
		if word == math.MaxUint64 { // half the time that the loop below takes
			for i, all := 0, n[w*64:][:64]; i < len(all); i++ {
				all[i]++
			}
			continue
		}
		for ; word != 0; word &= word - 1 {
			n[w*64+bits.TrailingZeros64(word)]++
		}
	}
}

// read counts the samples of an input row.
func (c *stepCounts) read(r *row) {
	if r.full() {
		c.fullIn++
		return
	}
	countInto(c.in, r.has)
}

// returned counts the samples of an output row.
func (c *stepCounts) returned(r *row) {
	countInto(c.out, r.has)
	for i, h := range r.hists {
		if h != nil && r.has.get(i) {
			c.out[i] += int32(vectorSize(h) - 1)
			c.less += vectorSize(h) - pointSize(h)
		}
	}
}

// finish adds the counts of all steps to the account. It is called after the operands were evaluated. If failAt is not
// negative, the operator has failed at step failAt: finish counts the steps up to failAt and returns the error fail.
func (c *stepCounts) finish(a *account, failAt int, fail error) error {
	total := 0
	for i := range c.in {
		in, out := int(c.in[i])+c.fullIn, int(c.out[i])
		if err := a.touch(total + in + out); err != nil {
			return err
		}
		if total += out; i == failAt {
			return fail
		}
	}
	a.current = c.before + total - c.less
	return nil
}

// finishBefore is finish for an operator that has failed before it returned samples of step failAt. Of this step it
// counts only the input.
func (c *stepCounts) finishBefore(a *account, failAt int, fail error) error {
	c.in, c.out[failAt] = c.in[:failAt+1], 0
	return c.finish(a, failAt, fail)
}

// finish finishes the counts of an operator whose result has the series of sets.
func (ev *evaluation) finish(counts *stepCounts, sets *labelsets) error {
	ev.repeats = ev.repeats || sets.repeated
	return counts.finish(&ev.acct, ev.dup(sets), errSameLabels)
}

// checkDistinct returns an error if two series of sets have the same labels at a step, unless delayed. mixed means that
// there are histograms: Prometheus allows a float and a histogram with the same labels.
func (ev *evaluation) checkDistinct(sets *labelsets, mixed, delayed bool) error {
	ev.repeats = ev.repeats || sets.repeated
	switch {
	case sets.dupStep < 0 || delayed:
		return nil
	case mixed:
		return errGiveUp("histograms and floats with the same labels")
	}
	return errSameLabels
}
