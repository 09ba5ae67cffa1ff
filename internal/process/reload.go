package process

import (
	"errors"
	"fmt"
	"slices"
)

// Change is one component's part of a reloaded configuration. Every function may be nil.
type Change struct {
	// Apply puts the part into effect or, with an error, leaves the old one in effect.
	Apply func() error
	// Undo puts the old part into effect again.
	Undo func() error
	// Commit does what is left to do when no change can be rejected any more. It cannot fail: a step that can fail
	// and that Undo cannot revert, such as deleting data, is Apply of the last change.
	Commit func()
}

// Apply applies all changes in order, or none: if Apply of one change fails, the changes before it
// are undone. Then it commits all changes in order.
func Apply(changes ...Change) error {
	for i, c := range changes {
		if c.Apply == nil {
			continue
		}
		if err := c.Apply(); err != nil {
			return errors.Join(err, undo(changes[:i]))
		}
	}
	for _, c := range changes {
		if c.Commit != nil {
			c.Commit()
		}
	}
	return nil
}

// undo reverts changes, the last first.
func undo(changes []Change) error {
	var errs []error
	for _, c := range slices.Backward(changes) {
		if c.Undo != nil {
			errs = append(errs, c.Undo())
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("the old configuration could not be restored: %w", err)
	}
	return nil
}
