package api

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

// selectFunctions returns the cost of each function over all stacks. The nodes of the flame
// graph are not limited: a flame graph that is cut lacks a part of the cost of small
// functions. It takes the request of SelectMergeStacktraces; its max_nodes limits the number of
// functions.
func (s *Server) selectFunctions(ctx context.Context, tenant string,
	m *profilepb.SelectMergeStacktracesRequest) (*profilepb.FunctionsEncoder, error) {
	if m.GetFormat() != profilepb.ProfileFormat_PROFILE_FORMAT_UNSPECIFIED {
		return nil, badRequest{fmt.Errorf("format %s: functions have no format", m.GetFormat())}
	}
	r, err := s.mergeQuery(tenant, m)
	if err != nil {
		return nil, err
	}
	most := r.MaxNodes
	r.MaxNodes = 0
	flame, err := s.flame(ctx, r)
	if err != nil {
		return nil, err
	}
	costs := Functions(flame)
	response := &profilepb.FunctionsEncoder{Functions: costs, Total: flame.Total, Count: int64(len(costs))}
	if most > 0 && len(costs) > most {
		response.Functions = costs[:most]
	}
	return response, nil
}

// Functions returns the cost of each function of a flame graph, the greatest totals first.
// The root is not a function.
func Functions(flame *profiles.FlameGraph) []profilepb.FunctionCost {
	costs := make([]profilepb.FunctionCost, len(flame.Names))
	for i, name := range flame.Names {
		costs[i].Name = name
	}
	type call struct {
		end, name int64
		outermost bool
	}
	var (
		stack []call
		next  = make([]int, len(flame.Levels))   // of each level: offset of the next node in its values
		ends  = make([]int64, len(flame.Levels)) // of each level: end of the last node that was read
		open  = make([]bool, len(flame.Names))   // whether the stack has a call of a function
	)
	for { // walks the graph depth first: either enters the next child of the last node in stack, or leaves this node
		depth := len(stack)
		if depth < len(flame.Levels) {
			if level := flame.Levels[depth][next[depth]:]; len(level) >= flameWidth {
				start, total, self, name := ends[depth]+level[0], level[1], level[2], level[3]
				if name < 0 || name >= int64(len(costs)) {
					return nil // not a flame graph of a query
				}
				if depth == 0 || start < stack[depth-1].end {
					next[depth] += flameWidth
					ends[depth] = start + total
					c := call{end: start + total, name: name, outermost: depth > 0 && !open[name]}
					if depth > 0 {
						costs[name].Self += self
					}
					if c.outermost {
						open[name] = true
						costs[name].Total += total
					}
					stack = append(stack, c)
					continue
				}
			}
		}
		if depth == 0 {
			break
		}
		if top := stack[depth-1]; top.outermost {
			open[top.name] = false
		}
		stack = stack[:depth-1]
	}
	costs = slices.DeleteFunc(costs, func(c profilepb.FunctionCost) bool { return c.Total == 0 })
	slices.SortFunc(costs, func(a, b profilepb.FunctionCost) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(b.Self, a.Self), strings.Compare(a.Name, b.Name))
	})
	return costs
}
