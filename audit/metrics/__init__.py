"""Measures of predictions that are not one class for each sample: boxes and masks. Plain numpy; nothing is stored here.

box_matching        which predicted box is which target
average_precision   COCO's mean average precision
mask_scores         IoU and pixel accuracy of each class
"""
