"""Preprocess and postprocess steps, and the pipeline that joins them to a graph.

- `images`: encoded images to pixels, scaled and cut
- `text`: text to tokens
- `files`: the first and last bytes of a file
- `arrays`: steps over a whole batch of numbers
- `shapes`: what a chain gives, worked out at load
- `scores`: steps over a model's output
- `pipeline`: a chain between what clients see and what the graph takes
"""
