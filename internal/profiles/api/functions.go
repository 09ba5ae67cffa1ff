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
	r, err := s.mergeRequest(tenant, m)
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
	var path []int
	outermost := make([]int, len(costs)) // by function: depth of its first call on the path; 0: none
	walk(flame, func(depth, name int, total, self int64) {
		for _, left := range path[depth:] {
			if outermost[left] >= depth {
				outermost[left] = 0
			}
		}
		if path = append(path[:depth], name); depth == 0 {
			return
		}
		costs[name].Self += self
		if outermost[name] == 0 {
			outermost[name] = depth
			costs[name].Total += total
		}
	})
	costs = slices.DeleteFunc(costs, func(c profilepb.FunctionCost) bool { return c.Total == 0 })
	slices.SortFunc(costs, func(a, b profilepb.FunctionCost) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(b.Self, a.Self), strings.Compare(a.Name, b.Name))
	})
	return costs
}
